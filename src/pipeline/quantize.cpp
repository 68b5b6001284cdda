#include "pipeline/quantize.h"

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/resources.h"
#include "kernels/cpu_level.h"
#include "pipeline/held_out.h"
#include "pipeline/job_identity.h"
#include "pipeline/journal.h"
#include "pipeline/model_forward.h"
#include "pipeline/plain_budget.h"
#include "pipeline/preflight.h"
#include "pipeline/quantize_run.h"
#include "pipeline/ranks.h"
#include "pipeline/shared_inputs.h"
#include "pipeline/telemetry.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
namespace {

QuantizeJob with_rules(QuantizeJob job) {
  if (job.compat_gptqmodel) {
    job.solve.grid.one_sided_range = true;
    job.solve.clear_dead_columns = true;
    job.solve.fill_zero_groups = true;
    job.solve.grid.unrounded_scales = true;
    job.accumulation.gptqmodel = true;
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
BudgetPlan plan_memory(const QuantizeJob& job, const Prepared& ready, const std::vector<TokenRow>& rows,
                       CalibratorOptions& calibrator, ThreadPool& pool) {
  if (job.budget.memory_bytes) return_freed_memory();
  BudgetOptions options = job.budget;
  options.scratch = scratch_folder(job);
  const bool writes = job.ranks == nullptr || job.ranks->writes();
  for (const TokenRow& row : ready.held_out)
    options.held_out_tokens += writes ? static_cast<int64_t>(row.size()) : 0;
  BudgetPlan budget =
      plan_budget(*ready.model, ready.plan, rows, calibrator, ready.plan.solve, options, pool);
  calibrator.waiting = budget.waiting;
  if (budget.spill) calibrator.spill = options.scratch;
  calibrator.expert_wave = budget.expert_wave;
  return budget;
}

// Of the first rank where there are several, which has most rows.
Json plan_json(const BudgetPlan& plan, const QuantizeJob& job) {
  Json json = to_json(plan);
  json["ranks"] = job.ranks == nullptr ? 1 : job.ranks->size();
  return json;
}

void say(const BudgetPlan& plan, const QuantizeJob& job, Log& log) {
  std::string parts;
  for (const MemoryPart& part : plan.parts)
    parts += str(parts.empty() ? "" : ", ", part.what, " ", human_bytes(static_cast<double>(part.bytes)));
  const int ranks = job.ranks == nullptr ? 1 : job.ranks->size();
  log.info(
      str(ranks == 1 ? std::string("memory: about ") : str("memory of each of ", ranks, " ranks: about "),
          human_bytes(static_cast<double>(plan.peak_bytes)), " at ", plan.worst, " (", parts,
          "); activations wait: ", to_json(plan).at("activations").get<std::string>()));
  log.info(str("time: about ", fixed(plan.seconds(), 0), " s"));
}

void say_sharing(const Json& shared, Log& log) {
  const int64_t adopted = shared.at("adopted"), sums = shared.at("sums");
  log.info(str("shared inputs: ", adopted, " of ", adopted + sums, " linear layers took another's Hessian, ",
               shared.at("planned"), " planned",
               !shared.at("enabled")    ? " (switched off)"
               : !shared.at("verified") ? " (the model type is not verified)"
                                        : ""));
}

Json dry_run_report(const QuantizeJob& job, const Prepared& ready, const std::optional<BudgetPlan>& budget) {
  const QuantizePlan& plan = ready.plan;
  Json json;
  json["dry_run"] = true;
  json["model_type"] = ready.subject.model_type;
  json["layers"] = plan.layers.size();
  json["quantized_weights"] = plan.quantized_weights();
  json["skipped"] = plan.skipped();
  json["rows"] = ready.rows.rows.size();
  json["tokens"] = ready.rows.tokens;
  uint64_t bytes = ready.gguf ? ready.gguf->bytes() : 0;
  if (!ready.gguf) {
    for (const PlannedTensor& tensor : plan.tensors) bytes += bytes_of(tensor);
  }
  json["weight_bytes"] = bytes;
  json["plan"] = budget ? plan_json(*budget, job) : Json(nullptr);
  return json;
}

// A job that its own input has stopped would stop there again.
Json discarded_when_hopeless(Journal& journal, const std::function<Json()>& work) {
  try {
    return work();
  } catch (const Error& error) {
    const ErrorKind kind = error.kind();
    if (kind == ErrorKind::numerical || kind == ErrorKind::unsupported || kind == ErrorKind::invalid_argument)
      journal.close();
    throw;
  }
}

using Clock = std::chrono::steady_clock;

// A job whose checks are done; `forward` is made when it is needed.
Json run(const QuantizeJob& job, const Prepared& ready, const SharedInputs& shared,
         const std::optional<BudgetPlan>& budget,
         const std::function<std::unique_ptr<LayerForward>()>& make_forward,
         const std::function<std::unique_ptr<HeldOut>()>& make_held_out, Clock::time_point start,
         ThreadPool& pool, Log& log) {
  const Method& method = *ready.method;
  const bool writes = job.ranks == nullptr || job.ranks->writes();
  Telemetry telemetry(writes ? job.telemetry : fs::path(), log);
  telemetry.event("start", {{"gramian", GRAMIAN_VERSION},
                            {"method", method.name},
                            {"source", job.source.string()},
                            {"output", job.output.string()},
                            {"model_type", ready.subject.model_type},
                            {"layers", ready.plan.layers.size()},
                            {"tokens", ready.rows.tokens},
                            {"lanes", job.lanes},
                            {"threads", pool.threads()},
                            {"cpu_level", name(cpu_level())}});
  if (budget) telemetry.event("plan", plan_json(*budget, job));
  const Json identity = job_identity(job, ready);
  std::optional<Journal> journal;
  if (writes) {
    const bool discard = job.force && !job.resume;
    journal.emplace(job.output, identity, discard ? Unfinished::discard : Unfinished::go_on, log);
  }
  std::optional<StatisticsFile> statistics;
  if (ready.runs_forward() && fs::exists(job.statistics)) {
    statistics.emplace(job.statistics, statistics_identity(identity));
    log.info("statistics are taken from " + job.statistics.string());
  }
  const auto work = [&] {
    QuantizeRun run(job, ready, shared, journal ? &*journal : nullptr, telemetry, pool, log);
    if (writes && !ready.held_out.empty()) run.hold_out(make_held_out());
    if (statistics) {
      run.from_statistics([&](const std::vector<Linear*>& modules) {
        return std::vector<PauseStatistics>{statistics->read(modules)};
      });
    } else if (ready.importance) {
      run.from_statistics(
          [&](const std::vector<Linear*>& modules) { return ready.importance->read(modules); });
    } else if (method.calibrated()) {
      if (!job.statistics.empty()) run.keep_statistics(statistics_identity(identity).dump());
      const std::unique_ptr<LayerForward> forward = make_forward();
      run.calibrated(*forward);
    } else {
      run.plain_rounding();
    }
    if (!writes) return Json();
    run.finish();
    Json report = run.report();
    if (ready.runs_forward() && !statistics) say_sharing(report.at("shared_inputs"), log);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    report["seconds"] = seconds + run.earlier_seconds();
    report["peak_rss_bytes"] = peak_rss_bytes();
    report["plan"] = budget ? plan_json(*budget, job) : Json(nullptr);
    run.commit(report);
    return report;
  };
  if (!journal) return work();
  const Json report = discarded_when_hopeless(*journal, work);
  telemetry.event("end", {{"seconds", report.at("seconds")},
                          {"fallbacks", report.at("fallbacks")},
                          {"peak_rss_bytes", report.at("peak_rss_bytes")}});
  return report;
}

}  // namespace

Json quantize(const QuantizeJob& given, ThreadPool& pool, Log& log) {
  const QuantizeJob job = with_rules(given);
  const auto start = Clock::now();
  const tensor::InferenceScope inference;
  const Prepared ready = prepare(job, pool, log);
  const Model& model = *ready.model;
  CalibratorOptions calibrator{.batch = job.batch,
                               .lanes = job.lanes,
                               .threads = pool.threads(),
                               .sequential = job.sequential,
                               .statistic = ready.method->statistic,
                               .accumulation = job.accumulation,
                               .share = {},
                               .all_experts = job.all_experts,
                               .log = &log};
  const SharedInputs shared(model, ready.plan, {job.shared_inputs, !job.statistics.empty()}, log);
  calibrator.share = [&](const std::vector<Linear*>& pause) { return shared.sums(pause); };
  std::optional<BudgetPlan> budget;
  std::vector<TokenRow> rows;
  if (ready.runs_forward()) {
    rows = job.ranks == nullptr ? ready.rows.rows : rows_of_rank(ready.rows.rows, job.batch, *job.ranks);
    budget = plan_memory(job, ready, rows, calibrator, pool);
    say(*budget, job, log);
  } else if (job.budget.memory_bytes) {
    return_freed_memory();
    refuse_small_memory(ready.plan, model.checkpoint(), ready.gguf.has_value(), *job.budget.memory_bytes);
  }
  if (job.dry_run) return dry_run_report(job, ready, budget);
  const auto forward = [&] { return std::make_unique<ModelForward>(model, rows, calibrator, job.ranks); };
  const auto held_out = [&] { return std::make_unique<HeldOut>(model, ready.held_out, calibrator); };
  return run(job, ready, shared, budget, forward, held_out, start, pool, log);
}

Json quantize(const QuantizeJob& given, Subject subject, RowSet rows, const MakeForward& forward,
              ThreadPool& pool, Log& log) {
  const QuantizeJob job = with_rules(given);
  const auto start = Clock::now();
  const tensor::InferenceScope inference;
  const Prepared ready = prepare(job, std::move(subject), std::move(rows), pool, log);
  const SharedInputs shared(ready.subject, ready.plan, {job.shared_inputs, !job.statistics.empty()});
  if (job.dry_run) return dry_run_report(job, ready, std::nullopt);
  const auto make = [&] {
    return forward([&](const std::vector<Linear*>& pause) { return shared.sums(pause); });
  };
  return run(job, ready, shared, std::nullopt, make, {}, start, pool, log);
}

}  // namespace gramian
