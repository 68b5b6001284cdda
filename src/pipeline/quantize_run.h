// A job between its plan and its report: layer by layer, from where an earlier run of it stopped.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/parallel.h"
#include "base/watchdog.h"
#include "models/model.h"
#include "pipeline/calibrator.h"
#include "pipeline/journal.h"
#include "pipeline/layer_record.h"
#include "pipeline/method.h"
#include "pipeline/metrics.h"
#include "pipeline/output_folder.h"
#include "pipeline/quantize.h"
#include "pipeline/shared_inputs.h"
#include "pipeline/solve_module.h"
#include "pipeline/statistics_file.h"
#include "pipeline/telemetry.h"

namespace gramian {

class QuantizeRun {
 public:
  using Json = nlohmann::ordered_json;

  // All must outlive the run.
  QuantizeRun(const QuantizeJob& job, const Model& model, const QuantizePlan& plan,
              const SharedInputs& shared, Journal& journal, Telemetry& telemetry, ThreadPool& pool, Log& log);
  void plain_rounding();
  void calibrated(const RowSet& rows, const CalibratorOptions& options);
  // calibrated() writes all statistics there too.
  void keep_statistics();
  // With the statistics of an earlier job instead of a forward.
  void from_statistics(const StatisticsFile& statistics, const RowSet& rows);
  Json report(const RowSet& rows, const Method& method) const;
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
  size_t take_input(Calibrator& calibrator);
  // The batches go through a layer whose weights are stored.
  void run_finished(size_t index, DecoderLayer& layer, Calibrator& calibrator);
  void run_new(size_t index, DecoderLayer& layer, Calibrator& calibrator);
  // One step more behind the decoder's layers.
  void run_head(size_t index, Calibrator& calibrator);
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
  void finish_layer(Calibrator* calibrator);
  // Where the disk has no room for them, the finished layers are run again instead.
  void keep_input(size_t layer, Calibrator& calibrator);
  void solve_pause(size_t layer, const PauseStatistics& statistics);
  // Why the statistics are too few for the module; empty where they are not.
  std::string lack(const PlannedModule& module, const PauseStatistics& statistics, bool starved) const;
  Factor factorize_pause(size_t layer, const SolveOptions& solve, const PauseStatistics& statistics);
  // Solves, packs and writes; returns what the forward goes on with, nothing where there is none.
  std::shared_ptr<const LinearOp> store(size_t layer, const PlannedModule& module,
                                        const InputStatistic& input, const std::string& lacking);
  // Of all quantized matrices of the layer that share a global scale with `module`.
  float largest_shared(size_t layer, const PlannedModule& module);
  void note(size_t layer, const SolvedModule& solved, const PlannedModule& planned, int64_t tokens,
            double error, double solve_seconds, double write_seconds);
  void verify_output();

  const QuantizeJob& job_;
  const Method& job_method_;
  const Model& model_;
  const QuantizePlan& plan_;
  const SharedInputs& shared_;
  Journal& journal_;
  Telemetry& telemetry_;
  ThreadPool& pool_;
  Log& log_;
  OutputFolder output_;
  std::unique_ptr<StatisticsWriter> new_statistics_;
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
  size_t resumed_at_ = 0;
  int64_t tokens_ = 0;
  int64_t batches_ = 0;
};

}  // namespace gramian
