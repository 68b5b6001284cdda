// A quantization job from a model to a checkpoint, or a GGUF file, that appears only when it is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/parallel.h"
#include "base/problems.h"
#include "pipeline/budget.h"
#include "pipeline/layer_forward.h"
#include "pipeline/plan.h"
#include "pipeline/rows.h"
#include "pipeline/subject.h"
#include "solve/fallback.h"
#include "solve/quantized.h"
#include "stats/accumulation.h"

namespace gramian {

class Ranks;  // pipeline/ranks.h

// An option that was given though nothing in the job depends on it; `reason` is who "has no use for" it, in words.
struct UnusedOption {
  std::string reason, name;
};

struct QuantizeJob {
  std::filesystem::path source;
  std::filesystem::path output;
  std::string method = "qqq";
  std::string format = "qqq";
  SolveOptions solve;
  FallbackOptions fallback;  // for modules whose Hessian does not factor or that saw too few tokens
  const gguf::TypeMix* type_mix =
      nullptr;  // types of a GGUF file's modules without a rule's own; null: the one of `solve`
  std::vector<ModuleRule> rules;             // of a recipe: settings of single modules
  std::optional<HeadOptions> head;           // lm_head is quantized too
  Problems recipe_problems;                  // found while the recipe was read, said along with all others
  std::vector<std::string> given;            // options by which the user said more than their defaults
  std::vector<UnusedOption> unused_options;  // said in one warning for each reason
  bool one_matrix = false;  // refuse rules that split what loaders make one matrix of, instead of a warning
  // GPT-QModel 7.7.0's rules: channel scales from the unquantized weight, one-sided ranges, cleared dead columns, filled
  // zero groups (the last three set in `solve` by quantize()), batches that go on with code · scale. The product's own
  // rules otherwise; docs/qqq.md compares them.
  bool compat_gptqmodel = false;
  std::optional<std::filesystem::path> calibration;
  std::optional<std::filesystem::path>
      imatrix;  // method imatrix: importance from this file, not from a forward
  RowOptions rows;
  // Rows of the calibration that are set aside: each finished layer is tried on them (pipeline/held_out.h). 0: none.
  int64_t held_out = 0;
  double held_out_limit =
      0.3;  // above which a layer or linear layer is warned of, a share of its output's norm
  int64_t batch = 8;
  int lanes = 1;
  std::string dtype = "auto";
  Sequential sequential = Sequential::subset;
  // With Sequential::none: read from this file when it exists, else written to it (pipeline/statistics_file.h). Empty: neither.
  std::filesystem::path statistics;
  AccumulationSettings accumulation;  // `gptqmodel` is set by quantize()
  BudgetOptions budget;               // without `scratch` waiting activations go beside the output
  // Experts with fewer tokens are rounded plainly.
  int64_t min_expert_tokens = 1;
  bool shared_inputs = true;  // one sum for modules that read one input; the result is the same bytes
  bool all_experts = false;   // statistics of every expert from every token
  bool dry_run = false;       // plan, write nothing
  bool skip_unfit = false;
  bool skip_scan = false;
  bool treat_as_tied = false;
  bool force = false;  // replace an output that exists; also discards an unfinished job, unless `resume`
  bool resume =
      false;  // go on with an unfinished job where there is one, which without `force` happens anyway
  Ranks* ranks = nullptr;           // other processes that work on the same job; null: none
  std::filesystem::path telemetry;  // file of pipeline/telemetry.h; empty: none
  std::filesystem::path metrics;    // file of pipeline/metrics.h; empty: none
  int64_t watchdog_seconds = 600;   // without a step, after which the stage is said; 0: never
  std::string command;              // a shell line that repeats the job, for the report
  uint64_t shard_bytes_max = uint64_t{4} << 30;
  PlanOptions plan_options() const {
    return {.settings = {solve, fallback},
            .rules = rules,
            .skip_unfit = skip_unfit,
            .head = head,
            .type_mix = type_mix};
  }
};

// Returns the report, which is also written to <output>/gramian-report.json; of a dry run the plan alone. Keys:
// docs/report.md.
nlohmann::ordered_json quantize(const QuantizeJob& job, ThreadPool& pool, Log& log);

// The same of a model that another forward runs. `forward` makes it, for sums as `share` says (SumOptions::share). What the job
// says of source, calibration, batches and memory is not used: the caller has seen to it.
using MakeForward = std::function<std::unique_ptr<LayerForward>(const decltype(SumOptions::share)& share)>;
nlohmann::ordered_json quantize(const QuantizeJob& job, Subject subject, RowSet rows,
                                const MakeForward& forward, ThreadPool& pool, Log& log);

}  // namespace gramian
