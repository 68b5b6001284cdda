// A job between its plan and its report: layer by layer, from where an earlier run of it stopped.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/parallel.h"
#include "base/watchdog.h"
#include "pipeline/held_out.h"
#include "pipeline/journal.h"
#include "pipeline/layer_forward.h"
#include "pipeline/layer_record.h"
#include "pipeline/method.h"
#include "pipeline/metrics.h"
#include "pipeline/output.h"
#include "pipeline/preflight.h"
#include "pipeline/quantize.h"
#include "pipeline/ranks.h"
#include "pipeline/shared_inputs.h"
#include "pipeline/solve_module.h"
#include "pipeline/statistics_file.h"
#include "pipeline/telemetry.h"

namespace gramian {

class QuantizeRun {
 public:
  using Json = nlohmann::ordered_json;

  // All must outlive the run. `journal`: null at ranks that do not write; these take no part in report(), finish() and commit().
  QuantizeRun(const QuantizeJob& job, const Prepared& ready, const SharedInputs& shared, Journal* journal,
              Telemetry& telemetry, ThreadPool& pool, Log& log);
  void plain_rounding();
  void calibrated(LayerForward& forward);
  // calibrated() writes all statistics there too.
  void keep_statistics(const std::string& identity);
  // With statistics that are there instead of a forward: `read` gives those of modules that read one input, for all together or each.
  using ReadStatistics = std::function<std::vector<PauseStatistics>(const std::vector<Linear*>& modules)>;
  void from_statistics(const ReadStatistics& read);
  // From now on, beside calibrated() and from_statistics() alike; those that earlier runs have finished are run again first.
  void hold_out(std::unique_ptr<HeldOut> rows);
  Json report() const;
  // Completes the checkpoint and reads it back.
  void finish();
  void commit(const Json& report);
  // Of the layers that earlier runs have finished.
  double earlier_seconds() const;

 private:
  // What an earlier run of the job has finished, and what it copied.
  void take_finished();
  // Under compat the forward goes on with weights that the stored bytes do not say, so that no layer can be run again: those
  // behind the newest input are made again.
  size_t usable_layers() const;
  // Gives the batches the newest input that there is; returns the layer it is of.
  size_t take_input(LayerForward& forward);
  // The batches go through a layer whose weights are stored.
  void run_finished(size_t index, LayerForward& forward);
  void run_new(size_t index, LayerForward& forward);
  // One step more behind the decoder's layers.
  void run_head(size_t index, LayerForward& forward);
  std::vector<std::vector<Linear>> inputs_of(size_t layer) const;
  void begin_layer();
  // The job has come to this stage of the layer: for the line of progress, the watchdog and the metrics.
  void at(size_t layer, const std::string& stage);
  JobProgress job_progress() const;
  // One line for logs.
  void say_layer(size_t layer) const;
  // Whether everyone has adopted who was to.
  void check_adoptions(size_t layer);
  // What the layer wrote is on the disk before its record is.
  void finish_layer(LayerForward* forward);
  // Where the disk has no room for them, the finished layers are run again instead.
  void keep_input(size_t layer, LayerForward& forward);
  // A module to be solved with what is known of its input.
  struct Task {
    const PlannedModule* planned;
    InputStatistic input;
    std::string lacking;       // why it does without; empty: it need not
    Linear* module = nullptr;  // which the forward goes on with; null: it goes on with the original one
  };
  void solve_pause(size_t layer, const PauseStatistics& statistics);
  // Where nothing waits for them, a layer's modules are solved together.
  void solve_deferred(size_t layer);
  // Why the statistics are too few for the module; empty where they are not.
  std::string lack(const PlannedModule& module, const PauseStatistics& statistics, bool starved) const;
  Factor factorize_pause(size_t layer, const SolveOptions& solve, const PauseStatistics& statistics);
  // Solves, packs and writes. Weights that lie ready are divided among the lanes, and written in order: the same bytes. Those that must be
  // decoded first are solved one at a time, with all threads, and so is the first module of all, for what its format makes once.
  void store(size_t layer, const std::vector<Task>& tasks);
  void store_one(size_t layer, const Task& task);
  void store_on_lanes(size_t layer, std::span<const Task> tasks);
  // What one rank makes of a module, and all know then.
  struct Outcome {
    Json report;           // of the module
    std::string fallback;  // empty: none
    PackedParts packed;
    std::shared_ptr<const LinearOp> next;
    int lane = 0, lanes = 1;
    double solve_seconds = 0, error_seconds = 0, pack_seconds = 0;
  };
  // `largest`: largest_shared() of the module. May be called by several lanes at a time.
  Outcome solve(const Task& task, float largest, ThreadPool& pool) const;
  // The next module in order: known to all ranks, and written.
  void take(size_t layer, const Task& task, Outcome outcome);
  // `outcome` is rank `owner`'s.
  void share(Outcome& outcome, const Task& task, int owner);
  // The rank that solves the module `ahead` of those from now on.
  int owner(size_t ahead) const {
    return job_.ranks == nullptr
               ? 0
               : static_cast<int>((turn_ + ahead) % static_cast<size_t>(job_.ranks->size()));
  }
  bool owns(size_t ahead) const { return job_.ranks == nullptr || owner(ahead) == job_.ranks->rank(); }
  PackedParts stored(const PlannedModule& module) const;
  // Of all quantized matrices of the layer that share a global scale with `module`.
  float largest_shared(size_t layer, const PlannedModule& module);
  void note(size_t layer, const Outcome& outcome, const PlannedModule& planned, double write_seconds);
  // The held-out rows behind the layer in work.
  void prove(size_t layer);
  HeldOut::Stored as_stored(size_t layer) const;
  Json held_out_report() const;
  void verify_output();
  // What a GGUF file's types came to.
  void report_types(Json& json) const;

  const QuantizeJob& job_;
  const Prepared& ready_;
  const Subject& subject_;
  const Method& method_;
  const RowSet& rows_;
  const QuantizePlan& plan_;
  const SharedInputs& shared_;
  Journal* journal_;
  Telemetry& telemetry_;
  ThreadPool& pool_;
  Log& log_;
  std::unique_ptr<Output> output_;  // of the rank that writes
  std::unique_ptr<StatisticsWriter> new_statistics_;
  std::unique_ptr<HeldOut> held_out_;  // of the rank that writes; null: none
  Progress progress_;
  Watchdog watchdog_;
  Metrics metrics_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::vector<LayerRecord> done_;
  LayerRecord now_;                       // of the layer in work
  std::set<std::string> adopted_;         // there
  std::map<std::string, float> largest_;  // there: of matrices that share a global scale, by fused_matrix()
  std::vector<std::string> unusable_;     // modules that needed a fallback and must not have one
  std::chrono::steady_clock::time_point layer_start_;
  std::vector<Task> deferred_;
  std::vector<std::unique_ptr<ThreadPool>> lane_pools_;  // made when first needed
  size_t turn_ = 0;                                      // modules solved so far, by whichever rank
  size_t resumed_at_ = 0;
  int64_t tokens_ = 0;
  int64_t batches_ = 0;
};

}  // namespace gramian
