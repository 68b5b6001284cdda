#include "pipeline/quantize.h"

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/resources.h"
#include "kernels/cpu_level.h"
#include "pipeline/job_identity.h"
#include "pipeline/journal.h"
#include "pipeline/preflight.h"
#include "pipeline/quantize_run.h"
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
BudgetPlan plan_memory(const QuantizeJob& job, const Model& model, const QuantizePlan& plan,
                       const RowSet& rows, CalibratorOptions& calibrator, ThreadPool& pool) {
  if (job.budget.memory_bytes) return_freed_memory();
  BudgetOptions options = job.budget;
  options.scratch = scratch_folder(job);
  BudgetPlan budget = plan_budget(model, plan, rows.rows, calibrator, plan.solve, options, pool);
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

void say_sharing(const Json& shared, Log& log) {
  const int64_t adopted = shared.at("adopted"), sums = shared.at("sums");
  log.info(str("shared inputs: ", adopted, " of ", adopted + sums, " linear layers took another's Hessian, ",
               shared.at("planned"), " planned",
               !shared.at("enabled")    ? " (switched off)"
               : !shared.at("verified") ? " (the model type is not verified)"
                                        : ""));
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
  for (const PlannedTensor& tensor : plan.tensors) bytes += bytes_of(tensor);
  json["weight_bytes"] = bytes;
  json["plan"] = budget ? to_json(*budget) : Json(nullptr);
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
  CalibratorOptions calibrator{.batch = job.batch,
                               .lanes = job.lanes,
                               .threads = pool.threads(),
                               .sequential = job.sequential,
                               .statistic = method.statistic,
                               .accumulation = job.accumulation,
                               .share = {},
                               .all_experts = job.all_experts,
                               .log = &log};
  const SharedInputs shared(model, plan, {job.shared_inputs, !job.statistics.empty()}, log);
  calibrator.share = [&](const std::vector<Linear*>& pause) { return shared.sums(pause); };
  std::optional<BudgetPlan> budget;
  if (method.calibrated()) {
    budget = plan_memory(job, model, plan, rows, calibrator, pool);
    say(*budget, log);
  }
  if (job.dry_run) return dry_run_report(model, plan, rows, budget);
  Telemetry telemetry(job.telemetry, log);
  telemetry.event("start", {{"gramian", GRAMIAN_VERSION},
                            {"method", method.name},
                            {"source", job.source.string()},
                            {"output", job.output.string()},
                            {"model_type", model.family().model_type},
                            {"layers", plan.layers.size()},
                            {"tokens", rows.tokens},
                            {"lanes", job.lanes},
                            {"threads", pool.threads()},
                            {"cpu_level", name(cpu_level())}});
  if (budget) telemetry.event("plan", to_json(*budget));
  const bool discard = job.force && !job.resume;
  Journal journal(job.output, job_identity(job, ready), discard ? Unfinished::discard : Unfinished::go_on,
                  log);
  std::optional<StatisticsFile> statistics;
  if (method.calibrated() && fs::exists(job.statistics)) {
    statistics.emplace(job.statistics, statistics_identity(journal.identity()));
    log.info("statistics are taken from " + job.statistics.string());
  }
  const auto work = [&] {
    QuantizeRun run(job, model, plan, shared, journal, telemetry, pool, log);
    if (statistics) {
      run.from_statistics(*statistics, rows);
    } else if (method.calibrated()) {
      if (!job.statistics.empty()) run.keep_statistics();
      run.calibrated(rows, calibrator);
    } else {
      run.plain_rounding();
    }
    run.finish();
    Json report = run.report(rows, method);
    if (method.calibrated() && !statistics) say_sharing(report.at("shared_inputs"), log);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    report["seconds"] = seconds + run.earlier_seconds();
    report["peak_rss_bytes"] = peak_rss_bytes();
    report["plan"] = budget ? to_json(*budget) : Json(nullptr);
    run.commit(report);
    return report;
  };
  const Json report = discarded_when_hopeless(journal, work);
  telemetry.event("end", {{"seconds", report.at("seconds")},
                          {"fallbacks", report.at("fallbacks")},
                          {"peak_rss_bytes", report.at("peak_rss_bytes")}});
  return report;
}

}  // namespace gramian
