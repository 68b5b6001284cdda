// A pause of a QuantizeRun: its modules are solved, stored and written down.
#include <algorithm>
#include <cmath>

#include "base/interrupt.h"
#include "formats/module_patterns.h"
#include "kernels/nvfp4/nvfp4.h"
#include "pipeline/quantize_run.h"
#include "solve/scale_search.h"

namespace gramian {
using Json = nlohmann::ordered_json;
namespace {

std::vector<std::string> names_of(const std::vector<Linear*>& modules) {
  std::vector<std::string> names;
  for (const Linear* module : modules) names.push_back(module->name);
  return names;
}

// Whether two modules that read one input may share its factor.
bool same_factor(const SolveOptions& a, const SolveOptions& b) {
  return a.order == b.order && a.damp_percent == b.damp_percent && a.damp_step == b.damp_step &&
         (a.order != ColumnOrder::group_aware || a.grid.group_size == b.grid.group_size);
}

PackSource load_source(const Checkpoint& checkpoint, const PlannedModule& module, bool compat) {
  return {module.linear.name, module.shape(), source_weight(checkpoint, module.linear),
          source_bias(checkpoint, module.linear), compat};
}

void drop_source(const Checkpoint& checkpoint, const Linear& linear) {
  // A stack's pages go with its last expert's module, and come back where another one still needs them.
  checkpoint.tensor(linear.tensor_name()).drop();
}

Json module_report(const SolvedModule& solved, const std::string& method, const PlannedModule& planned,
                   int64_t tokens, double relative_error) {
  const QuantizedLinear& q = solved.quantized;
  const Linear& linear = planned.linear;
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  Json json;
  json["name"] = linear.name;
  json["method"] = method;
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
  json["refined"] = q.refined ? Json{{"codes", q.refined->codes}, {"gain", q.refined->gain}} : Json(nullptr);
  json["int8_saturated"] = solved.decoded.saturated;
  json["bits"] = planned.solve.grid.bits;
  json["group_size"] = planned.solve.grid.group_size;
  json["symmetric"] = planned.solve.grid.symmetric;
  json["mse"] = planned.solve.grid.mse;
  json["order"] = to_text(planned.solve.order);
  json["rule"] = planned.rule.empty() ? Json(nullptr) : Json(planned.rule);
  return json;
}

}  // namespace

void QuantizeRun::solve_pause(size_t layer, const PauseStatistics& statistics) {
  if (new_statistics_ && statistics.first) new_statistics_->write(statistics);
  const bool local = job_method_.statistic == Statistic::local_hessian;
  // Where the statistic has its full rank.
  const int64_t columns = local ? nvfp4::kBlock : statistics.modules[0]->in_features;
  if (statistics.tokens < columns) {
    // The counts of experts differ, and one line is enough for all.
    log_.warn(statistics.expert
                  ? std::string("some experts saw fewer calibration tokens than they have columns: their "
                                "Hessians are rank deficient; give more --samples")
                  : str("fewer calibration tokens (", statistics.tokens, ") than columns (", columns,
                        ") in some layers: their Hessians are rank deficient; give more --samples"));
  }
  now_.stages["statistics"] += statistics.sum_seconds / job_.lanes;
  now_.stages["merge"] += statistics.merge_seconds;
  const std::string& first = statistics.modules[0]->name;
  telemetry_.event("pause", {{"layer", layer},
                             {"modules", names_of(statistics.modules)},
                             {"expert", statistics.expert},
                             {"tokens", statistics.tokens},
                             {"columns", statistics.modules[0]->in_features},
                             {"sum_seconds", statistics.sum_seconds}});
  telemetry_.event(
      "merge",
      {{"layer", layer}, {"module", first}, {"lanes", job_.lanes}, {"seconds", statistics.merge_seconds}});
  const bool starved = statistics.expert && statistics.tokens < job_.min_expert_tokens;
  if (starved && statistics.first) now_.starved_experts.push_back(first);
  // Modules of other settings need another factor of the same Hessian: one is there at a time.
  std::vector<std::pair<Linear*, const PlannedModule*>> left;
  for (Linear* module : statistics.modules) {
    const PlannedModule& planned = *plan_.find(layer, module->name);
    if (planned.quantize) left.emplace_back(module, &planned);
  }
  if (local) {
    for (const auto& [module, planned] : left) {
      module->op = store(layer, *planned, {.blocks = statistics.blocks, .tokens = statistics.tokens},
                         lack(*planned, statistics, starved));
    }
    return;
  }
  while (!left.empty()) {
    const SolveOptions solve = left[0].second->solve;
    Factor factor;
    const auto same = std::stable_partition(
        left.begin(), left.end(), [&](const auto& one) { return same_factor(one.second->solve, solve); });
    const auto usable = [&](const auto& one) { return lack(*one.second, statistics, starved).empty(); };
    if (std::any_of(left.begin(), same, usable)) factor = factorize_pause(layer, solve, statistics);
    for (auto one = left.begin(); one != same; ++one) {
      const std::string lacking = lack(*one->second, statistics, starved);
      one->first->op =
          store(layer, *one->second,
                {.factor = &factor, .hessian = statistics.hessian, .tokens = statistics.tokens}, lacking);
    }
    left.erase(left.begin(), same);
  }
}

std::string QuantizeRun::lack(const PlannedModule& module, const PauseStatistics& statistics,
                              bool starved) const {
  if (statistics.tokens == 0) return "no calibration tokens";
  const double least = module.fallback.threshold.tokens(tokens_);
  if (static_cast<double>(statistics.tokens) < least)
    return str(statistics.tokens, " calibration tokens, fewer than ", least);
  if (starved) return str(statistics.tokens, " calibration tokens, fewer than ", job_.min_expert_tokens);
  return "";
}

Factor QuantizeRun::factorize_pause(size_t layer, const SolveOptions& solve,
                                    const PauseStatistics& statistics) {
  double seconds = 0;
  const Factor factor = timed(seconds, [&] {
    const at::Tensor order = column_order(statistics.hessian, solve.order, solve.grid.group_size);
    return factorize(statistics.hessian, solve.damp_percent, solve.damp_step, &pool_, order);
  });
  now_.stages["factor"] += seconds;
  telemetry_.event("factor", {{"layer", layer},
                              {"module", statistics.modules[0]->name},
                              {"columns", statistics.modules[0]->in_features},
                              {"damp", factor.damp},
                              {"attempts", factor.attempts},
                              {"ok", factor.ok()},
                              {"seconds", seconds}});
  return factor;
}

std::shared_ptr<const LinearOp> QuantizeRun::store(size_t layer, const PlannedModule& module,
                                                   const InputStatistic& input, const std::string& lacking) {
  throw_if_interrupted();
  const Linear& linear = module.linear;
  at(layer, "solving " + linear.name);
  const PackSource source = load_source(model_.checkpoint(), module, job_.compat_gptqmodel);
  double solve_seconds = 0, write_seconds = 0;
  const SolvedModule solved = timed(solve_seconds, [&] {
    const float largest = module.solve.grid.kind == GridKind::nvfp4 ? largest_shared(layer, module) : 0;
    const SolveSettings settings = {*module.format, module.solve, module.fallback, lacking, largest};
    return solve_module(source, input, settings, pool_);
  });
  const double error =
      input.tokens == 0 ? std::nan("")
                        : timed(now_.stages["error"], [&] { return relative_error(source, solved, input); });
  std::shared_ptr<const LinearOp> next;
  timed(write_seconds, [&] {
    now_.digests.merge(output_.write(linear.name, solved.packed));
    if (job_method_.calibrated()) next = replacement(solved, source, model_.dtype());
    drop_source(model_.checkpoint(), linear);
  });
  now_.stages["solve"] += solve_seconds;
  now_.stages["pack"] += write_seconds;
  note(layer, solved, module, input.tokens, error, solve_seconds, write_seconds);
  return next;
}

float QuantizeRun::largest_shared(size_t layer, const PlannedModule& module) {
  const std::string matrix = fused_matrix(module.linear.name);
  const auto [known, fresh] = largest_.emplace(matrix.empty() ? module.linear.name : matrix, 0.0f);
  if (!fresh) return known->second;
  for (const PlannedModule& other : plan_.layers[layer]) {
    const bool same = &other == &module || (!matrix.empty() && fused_matrix(other.linear.name) == matrix);
    if (!same || !other.quantize) continue;
    known->second =
        std::max(known->second, largest_magnitude(source_weight(model_.checkpoint(), other.linear)));
    drop_source(model_.checkpoint(), other.linear);
  }
  return known->second;
}

void QuantizeRun::note(size_t layer, const SolvedModule& solved, const PlannedModule& planned, int64_t tokens,
                       double error, double solve_seconds, double write_seconds) {
  const Linear& linear = planned.linear;
  const bool nvfp4 = planned.solve.grid.kind == GridKind::nvfp4;
  const std::string method = solved.quantized.fallback.empty() ? job_.method
                             : nvfp4                           ? std::string("nvfp4_mse")
                                                               : to_text(planned.fallback.strategy);
  const Json module = module_report(solved, method, planned, tokens, error);
  telemetry_.event("solve", {{"layer", layer},
                             {"module", linear.name},
                             {"method", method},
                             {"loss", module.at("loss")},
                             {"relative_error", module.at("relative_error")},
                             {"fallback", module.at("fallback")},
                             {"seconds", solve_seconds}});
  telemetry_.event("write", {{"layer", layer}, {"module", linear.name}, {"seconds", write_seconds}});
  now_.modules.push_back(module);
  if (solved.quantized.fallback.empty()) return;
  ++now_.fallbacks;
  if (planned.fallback.refuse) unusable_.push_back(linear.name + ": " + solved.quantized.fallback);
  log_.warn(linear.name + ": " + solved.quantized.fallback);
}

}  // namespace gramian
