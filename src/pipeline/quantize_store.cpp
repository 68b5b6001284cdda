// QuantizeRun::store(): one module, solved by one rank, known to all, written by the first.
#include <algorithm>
#include <cmath>

#include "base/interrupt.h"
#include "formats/json.h"
#include "formats/module_patterns.h"
#include "pipeline/quantize_run.h"
#include "solve/scale_search.h"
#include "tensor/ops.h"

namespace gramian {
using Json = nlohmann::ordered_json;
namespace {

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
  Json json;
  json["name"] = linear.name;
  json["method"] = method;
  json["loss"] = number_or_null(q.loss);
  json["relative_error"] = number_or_null(relative_error);
  json["damp"] = q.damp;
  json["damp_attempts"] = q.damp_attempts;
  json["diagonal_spread"] = number_or_null(q.diagonal_spread);
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
  if (planned.solve.grid.codec != nullptr) json["type"] = planned.solve.grid.codec->name;
  json["order"] = to_text(planned.solve.order);
  json["rule"] = planned.rule.empty() ? Json(nullptr) : Json(planned.rule);
  return json;
}

}  // namespace

std::shared_ptr<const LinearOp> QuantizeRun::store(size_t layer, const PlannedModule& module,
                                                   const InputStatistic& input, const std::string& lacking) {
  throw_if_interrupted();
  at(layer, "solving " + module.linear.name);
  double solve_seconds = 0, write_seconds = 0;
  Outcome outcome;
  if (owns(0)) outcome = solve(layer, module, input, lacking, solve_seconds);
  if (job_.ranks != nullptr) share(outcome, module, owner(0));
  ++turn_;
  timed(write_seconds, [&] {
    if (output_) now_.digests.merge(output_->write(module, outcome.packed));
    drop_source(*subject_.checkpoint, module.linear);
  });
  now_.stages["solve"] += solve_seconds;
  now_.stages["pack"] += write_seconds;
  note(layer, outcome, module, solve_seconds, write_seconds);
  return outcome.next;
}

QuantizeRun::Outcome QuantizeRun::solve(size_t layer, const PlannedModule& module,
                                        const InputStatistic& input, const std::string& lacking,
                                        double& seconds) {
  const PackSource source = load_source(*subject_.checkpoint, module, job_.compat_gptqmodel);
  const bool nvfp4 = module.solve.grid.kind == GridKind::nvfp4;
  const SolvedModule solved = timed(seconds, [&] {
    const float largest = nvfp4 ? largest_shared(layer, module) : 0;
    const SolveSettings settings = {*module.format, module.solve, module.fallback, lacking, largest};
    return solve_module(source, input, settings, pool_);
  });
  const double error = input.tokens == 0 ? std::nan("") : timed(now_.stages["error"], [&] {
    return relative_error(source.weight, solved.decoded.weight, input);
  });
  const std::string method = solved.quantized.fallback.empty() ? job_.method
                             : nvfp4                           ? std::string("nvfp4_mse")
                                                               : to_text(module.fallback.strategy);
  Outcome outcome{module_report(solved, method, module, input.tokens, error),
                  solved.quantized.fallback,
                  solved.packed,
                  {}};
  if (method_.calibrated())
    outcome.next = timed(now_.stages["pack"], [&] { return replacement(solved, source, subject_.dtype); });
  return outcome;
}

float QuantizeRun::largest_shared(size_t layer, const PlannedModule& module) {
  const std::string matrix = fused_matrix(module.linear.name);
  const auto [known, fresh] = largest_.emplace(matrix.empty() ? module.linear.name : matrix, 0.0f);
  if (!fresh) return known->second;
  for (const PlannedModule& other : plan_.layers[layer]) {
    const bool same = &other == &module || (!matrix.empty() && fused_matrix(other.linear.name) == matrix);
    if (!same || !other.quantize) continue;
    known->second =
        std::max(known->second, largest_magnitude(source_weight(*subject_.checkpoint, other.linear)));
    drop_source(*subject_.checkpoint, other.linear);
  }
  return known->second;
}

void QuantizeRun::share(Outcome& outcome, const PlannedModule& module, int owner) {
  Ranks& ranks = *job_.ranks;
  const bool mine = owner == ranks.rank();
  const Json known =
      from_rank(Json{{"report", outcome.report}, {"fallback", outcome.fallback}}, owner, ranks);
  outcome.report = known.at("report");
  outcome.fallback = known.at("fallback");
  outcome.packed = from_rank(outcome.packed, module, owner, ranks);
  if (!method_.calibrated()) return;
  if (!job_.compat_gptqmodel) {
    if (!mine)
      outcome.next = stored_replacement(*module.format, outcome.packed, module.linear, module.solve.grid,
                                        subject_.dtype);
    return;
  }
  // What the stored bytes do not say.
  const Linear& linear = module.linear;
  const at::Tensor weight = mine ? dynamic_cast<const DenseLinear&>(*outcome.next).weight().contiguous()
                                 : tensor::empty({linear.out_features, linear.in_features}, subject_.dtype);
  ranks.broadcast(weight, owner);
  if (mine) return;
  const at::Tensor bias = source_bias(*subject_.checkpoint, linear);
  outcome.next = std::make_shared<DenseLinear>(weight, bias.defined() ? bias.to(subject_.dtype) : bias);
}

PackedParts QuantizeRun::stored(const PlannedModule& module) const {
  PackedParts parts;
  if (output_) parts = output_->read(module);
  return job_.ranks == nullptr ? parts : from_rank(parts, module, 0, *job_.ranks);
}

void QuantizeRun::note(size_t layer, const Outcome& outcome, const PlannedModule& planned,
                       double solve_seconds, double write_seconds) {
  const std::string& name = planned.linear.name;
  const Json& module = outcome.report;
  telemetry_.event("solve", {{"layer", layer},
                             {"module", name},
                             {"method", module.at("method")},
                             {"loss", module.at("loss")},
                             {"relative_error", module.at("relative_error")},
                             {"fallback", module.at("fallback")},
                             {"seconds", solve_seconds}});
  telemetry_.event("write", {{"layer", layer}, {"module", name}, {"seconds", write_seconds}});
  now_.modules.push_back(module);
  if (outcome.fallback.empty()) return;
  ++now_.fallbacks;
  if (planned.fallback.refuse) unusable_.push_back(name + ": " + outcome.fallback);
  log_.warn(name + ": " + outcome.fallback);
}

}  // namespace gramian
