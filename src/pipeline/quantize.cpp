#include "pipeline/quantize.h"

#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/interrupt.h"
#include "base/resources.h"
#include "pipeline/calibrator.h"
#include "pipeline/output_folder.h"
#include "pipeline/preflight.h"
#include "pipeline/solve_module.h"
#include "pipeline/verify.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
namespace {

// Seconds per stage of the job.
class Stopwatch {
 public:
  template <class Work>
  auto time(const std::string& stage, Work&& work) {
    const auto start = std::chrono::steady_clock::now();
    struct Stop {
      Stopwatch& watch;
      const std::string& stage;
      std::chrono::steady_clock::time_point start;
      ~Stop() {
        watch.seconds_[stage] +=
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
    } stop{*this, stage, start};
    return work();
  }
  Json report() const {
    Json json = Json::object();
    for (const auto& [stage, seconds] : seconds_) json[stage] = seconds;
    return json;
  }

 private:
  std::map<std::string, double> seconds_;
};

ModuleSource load_source(const Checkpoint& checkpoint, const Linear& linear) {
  ModuleSource source{linear.name, source_weight(checkpoint, linear), {}};
  if (linear.has_bias) source.bias = checkpoint.tensor(linear.name + ".bias").to_tensor();
  return source;
}

void drop_source(const Checkpoint& checkpoint, const Linear& linear) {
  // A stack's pages go with its last expert's module, and come back where another one still needs them.
  const StoredTensor& stored = checkpoint.tensor(linear.tensor_name());
  stored.file->drop(stored.bytes);
}

Json module_report(const SolvedModule& solved, const Linear& linear, int64_t tokens, double relative_error) {
  const QuantizedLinear& q = solved.quantized;
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  Json json;
  json["name"] = linear.name;
  json["method"] = solved.method;
  json["loss"] = number(q.loss);
  json["relative_error"] = number(relative_error);
  json["damp"] = q.damp;
  json["damp_attempts"] = q.damp_attempts;
  json["diagonal_spread"] = number(q.diagonal_spread);
  json["samples"] = tokens;
  json["fallback"] = q.fallback.empty() ? Json(nullptr) : Json(q.fallback);
  json["out_features"] = linear.out_features;
  json["in_features"] = linear.in_features;
  json["dead_columns"] = q.dead_columns;
  json["zero_groups"] = q.zero_groups;
  json["int8_saturated"] = solved.decoded.saturated;
  return json;
}

// A job between its plan and its report.
class Run {
 public:
  Run(const QuantizeJob& job, const Model& model, const QuantizePlan& plan, ThreadPool& pool, Log& log)
      : job_(job),
        model_(model),
        plan_(plan),
        pool_(pool),
        log_(log),
        output_(job.output, job.force, model.checkpoint(), plan, job.shard_bytes_max),
        progress_(log, "layers", static_cast<int64_t>(plan.layers.size())) {}

  void plain_rounding() {
    for (size_t i = 0; i < plan_.layers.size(); ++i) {
      for (const PlannedModule& module : plan_.layers[i]) {
        progress_.update(static_cast<double>(i), module.linear.name);
        if (module.quantize) store(module.linear, nullptr, nullptr);
      }
    }
  }

  void calibrated(const RowSet& rows, const CalibratorOptions& options) {
    Calibrator calibrator(model_, rows.rows, options);
    tokens_ = calibrator.tokens();
    for (size_t i = 0; i < plan_.layers.size(); ++i) {
      const auto layer = model_.load_layer(static_cast<int64_t>(i));
      double pause = 0;
      const auto pauses = static_cast<double>(model_.module_names(static_cast<int64_t>(i)).size());
      calibrator.run_layer(static_cast<int64_t>(i), *layer, [&](const PauseStatistics& statistics) {
        progress_.update(static_cast<double>(i) + pause++ / pauses, statistics.modules[0]->name);
        solve_pause(i, statistics);
      });
      model_.drop_layer(static_cast<int64_t>(i));
    }
    waiting_bytes_ = calibrator.activations().parked_bytes();
    multiplications_ = calibrator.linear_multiplications();
    batches_ = calibrator.batches();
  }

  Json report(const RowSet& rows, const Method& method) const;
  // Completes the checkpoint and reads it back.
  void finish() {
    output_.finish({.solve = job_.solve, .method = job_.method, .skipped = plan_.skipped()},
                   model_.tied_on_request());
    watch_.time("verify", [&] { verify_output(); });
  }
  void commit(const Json& report) { output_.commit(report); }

 private:
  void solve_pause(size_t layer, const PauseStatistics& statistics) {
    const int64_t columns = statistics.modules[0]->in_features;
    if (statistics.tokens < columns) {
      // The counts of experts differ, and one line is enough for all.
      log_.warn(statistics.expert
                    ? std::string("some experts saw fewer calibration tokens than they have columns: their "
                                  "Hessians are rank deficient; give more --samples")
                    : str("fewer calibration tokens (", statistics.tokens, ") than columns (", columns,
                          ") in some layers: their Hessians are rank deficient; give more --samples"));
    }
    const bool starved = statistics.expert && statistics.tokens < job_.min_expert_tokens;
    if (starved) starved_experts_.push_back(statistics.modules[0]->name);
    Factor factor;
    if (statistics.tokens > 0 && !starved) {
      factor = watch_.time("factor", [&] {
        return factorize(statistics.hessian, job_.solve.damp_percent, job_.solve.damp_step, &pool_);
      });
    }
    for (Linear* module : statistics.modules) {
      if (plan_.find(layer, module->name)->quantize) module->op = store(*module, &factor, &statistics);
    }
  }

  // Solves, packs and writes; returns what the forward goes on with. Plain rounding has neither factor nor statistics.
  std::shared_ptr<const LinearOp> store(const Linear& linear, const Factor* factor,
                                        const PauseStatistics* statistics) {
    throw_if_interrupted();
    const int64_t tokens = statistics == nullptr ? 0 : statistics->tokens;
    const ModuleSource source = load_source(model_.checkpoint(), linear);
    const SolvedModule solved = watch_.time("solve", [&] {
      return solve_module(source, factor, tokens, job_.solve, job_.compat_gptqmodel, pool_);
    });
    double error = std::nan("");
    if (statistics != nullptr && statistics->hessian.defined())
      error = watch_.time("error", [&] { return relative_error(source, solved, statistics->hessian); });
    return watch_.time("pack", [&] {
      output_.write(linear.name, solved.packed);
      modules_.push_back(module_report(solved, linear, tokens, error));
      if (!solved.quantized.fallback.empty()) {
        ++fallbacks_;
        log_.warn(linear.name + ": " + solved.quantized.fallback);
      }
      std::shared_ptr<const LinearOp> next;
      if (factor != nullptr) next = replacement(solved, source, model_.dtype(), job_.compat_gptqmodel);
      drop_source(model_.checkpoint(), linear);
      return next;
    });
  }

  void verify_output() {
    std::vector<std::string> problems;
    try {
      const auto written = std::make_shared<const Checkpoint>(output_.staged());
      problems = compare_with_source(*written, model_.checkpoint(), plan_);
      const Verification found = verify(written, {.copies = false}, pool_, log_);
      problems.insert(problems.end(), found.problems.begin(), found.problems.end());
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupted) throw;
      problems.emplace_back(error.what());
    }
    if (problems.empty()) return;
    std::string all;
    for (const std::string& problem : problems) all += "\n  " + problem;
    throw Error(ErrorKind::internal, job_.output.string(),
                str("what was written does not verify, ", problems.size(), " problem(s):", all),
                "\nnothing was kept; check the disk, and report it if the disk is sound");
  }

  const QuantizeJob& job_;
  const Model& model_;
  const QuantizePlan& plan_;
  ThreadPool& pool_;
  Log& log_;
  OutputFolder output_;
  Progress progress_;
  Stopwatch watch_;
  std::vector<Json> modules_;
  std::vector<std::string> starved_experts_;  // the first module of each pause
  int64_t fallbacks_ = 0;
  int64_t waiting_bytes_ = 0;
  int64_t tokens_ = 0;
  int64_t multiplications_ = 0;
  int64_t batches_ = 0;
};

Json Run::report(const RowSet& rows, const Method& method) const {
  uint64_t packed_bits = 0;
  int64_t source_weights = 0;
  for (const PlannedTensor& tensor : plan_.tensors) {
    const bool of_module = tensor.name.ends_with(".B") || tensor.name.ends_with(".s_channel") ||
                           tensor.name.ends_with(".s_group");
    if (!of_module || model_.checkpoint().contains(tensor.name)) continue;
    uint64_t bits = 8 * dtype_bytes(tensor.dtype);
    for (const int64_t size : tensor.shape) bits *= static_cast<uint64_t>(size);
    packed_bits += bits;
  }
  for (const auto& [name, tensor] : model_.checkpoint().tensors()) {
    source_weights += static_cast<int64_t>(tensor.bytes.size() / dtype_bytes(tensor.dtype));
  }
  Json json;
  json["gramian"] = GRAMIAN_VERSION;
  json["method"] = method.name;
  json["group_size"] = job_.solve.grid.group_size;
  json["mse"] = job_.solve.grid.mse;
  if (method.needs_hessian) json["damp_percent"] = job_.solve.damp_percent;
  json["compat"] = job_.compat_gptqmodel ? Json("gptqmodel") : Json(nullptr);
  json["dtype"] = c10::toString(model_.dtype());
  json["source_scan"] = !job_.skip_scan;
  json["rows_asked"] = rows.asked ? Json(*rows.asked) : Json(nullptr);
  json["rows"] = rows.rows.size();
  json["rows_blank"] = rows.blank;
  json["rows_split"] = rows.split;
  json["rows_policy"] = rows.policy;
  json["sequence_length"] = rows.sequence_length ? Json(*rows.sequence_length) : Json(nullptr);
  json["tokens_asked"] =
      rows.asked && rows.sequence_length ? Json(*rows.asked * *rows.sequence_length) : Json(nullptr);
  json["tokens"] = tokens_;
  json["batches"] = batches_;
  json["lanes"] = job_.lanes;
  json["linear_multiplications"] = multiplications_;
  json["sequential"] = to_text(job_.sequential);
  json["activations_parked_bytes"] = waiting_bytes_;
  json["fallbacks"] = fallbacks_;
  json["min_expert_tokens"] = job_.min_expert_tokens;
  json["experts_below_minimum"] = starved_experts_;
  json["skipped"] = plan_.skipped();
  json["bits_per_weight"] = static_cast<double>(packed_bits) / static_cast<double>(plan_.quantized_weights());
  json["bits_per_weight_total"] =
      8.0 * static_cast<double>(output_.weight_bytes()) / static_cast<double>(source_weights);
  json["weight_bytes"] = output_.weight_bytes();
  json["verified"] = true;  // finish() has thrown otherwise
  json["stages"] = watch_.report();
  json["modules"] = modules_;
  return json;
}

QuantizeJob with_rules(QuantizeJob job) {
  if (job.compat_gptqmodel) {
    job.solve.grid.one_sided_range = true;
    job.solve.clear_dead_columns = true;
    job.solve.fill_zero_groups = true;
  }
  return job;
}

// The nearest folder above the output that exists: on its disk, without a trace in it.
fs::path scratch_folder(const QuantizeJob& job) {
  if (!job.budget.scratch.empty()) return job.budget.scratch;
  fs::path folder = fs::absolute(job.output).lexically_normal();
  do {
    folder = folder.parent_path();
    if (fs::exists(folder) && !fs::is_directory(folder)) {
      throw Error(ErrorKind::invalid_argument, job.output.string(), "lies below the file " + folder.string(),
                  "name another output");
    }
  } while (!fs::is_directory(folder) && folder != folder.root_path());
  return folder;
}

// Plans, and sets in `calibrator` what the plan decides.
BudgetPlan plan_memory(const QuantizeJob& job, const Model& model, const QuantizePlan& plan,
                       const RowSet& rows, CalibratorOptions& calibrator, ThreadPool& pool) {
  if (job.budget.memory_bytes) return_freed_memory();
  BudgetOptions options = job.budget;
  options.scratch = scratch_folder(job);
  BudgetPlan budget = plan_budget(model, plan, rows.rows, calibrator, job.solve, options, pool);
  calibrator.waiting = budget.waiting;
  if (budget.spill) calibrator.spill = options.scratch;
  calibrator.expert_wave = budget.expert_wave;
  return budget;
}

void say(const BudgetPlan& plan, Log& log) {
  std::string parts;
  for (const MemoryPart& part : plan.parts)
    parts += str(parts.empty() ? "" : ", ", part.what, " ", human_bytes(static_cast<double>(part.bytes)));
  log.info(str("memory: about ", human_bytes(static_cast<double>(plan.peak_bytes)), " at ", plan.worst, " (",
               parts, "); activations wait: ", to_json(plan).at("activations").get<std::string>()));
  log.info(str("time: about ", fixed(plan.seconds(), 0), " s"));
}

Json dry_run_report(const Model& model, const QuantizePlan& plan, const RowSet& rows,
                    const std::optional<BudgetPlan>& budget) {
  Json json;
  json["dry_run"] = true;
  json["model_type"] = model.family().model_type;
  json["layers"] = plan.layers.size();
  json["quantized_weights"] = plan.quantized_weights();
  json["skipped"] = plan.skipped();
  json["rows"] = rows.rows.size();
  json["tokens"] = rows.tokens;
  uint64_t bytes = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    uint64_t size = dtype_bytes(tensor.dtype);
    for (const int64_t dim : tensor.shape) size *= static_cast<uint64_t>(dim);
    bytes += size;
  }
  json["weight_bytes"] = bytes;
  json["plan"] = budget ? to_json(*budget) : Json(nullptr);
  return json;
}

}  // namespace

Json quantize(const QuantizeJob& given, ThreadPool& pool, Log& log) {
  const QuantizeJob job = with_rules(given);
  const auto start = std::chrono::steady_clock::now();
  const tensor::InferenceScope inference;
  const Prepared ready = prepare(job, pool, log);
  const Method& method = *ready.method;
  const Model& model = *ready.model;
  const QuantizePlan& plan = ready.plan;
  const RowSet& rows = ready.rows;
  CalibratorOptions calibrator{
      .batch = job.batch, .lanes = job.lanes, .threads = pool.threads(), .sequential = job.sequential};
  std::optional<BudgetPlan> budget;
  if (method.needs_hessian) {
    budget = plan_memory(job, model, plan, rows, calibrator, pool);
    say(*budget, log);
  }
  if (job.dry_run) return dry_run_report(model, plan, rows, budget);
  Run run(job, model, plan, pool, log);
  if (method.needs_hessian) {
    run.calibrated(rows, calibrator);
  } else {
    run.plain_rounding();
  }
  run.finish();
  Json report = run.report(rows, method);
  report["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report["peak_rss_bytes"] = peak_rss_bytes();
  report["plan"] = budget ? to_json(*budget) : Json(nullptr);
  run.commit(report);
  return report;
}

}  // namespace gramian
