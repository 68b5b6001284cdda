// QuantizeRun::store(): modules, each solved by one rank, known to all, written by the first.
#include <algorithm>
#include <cmath>

#include "base/interrupt.h"
#include "base/ordered_lanes.h"
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

void QuantizeRun::store(size_t layer, const std::vector<Task>& tasks) {
  const auto ready = [&](const Task& task) {
    return subject_.checkpoint->tensor(task.planned->linear.tensor_name()).encoding == nullptr;
  };
  for (size_t begin = 0; begin < tasks.size();) {
    size_t end = begin;
    while (turn_ > 0 && job_.lanes > 1 && end < tasks.size() && ready(tasks[end])) ++end;
    if (end > begin + 1) {
      store_on_lanes(layer, std::span(tasks).subspan(begin, end - begin));
    } else {
      store_one(layer, tasks[begin]);
      end = begin + 1;
    }
    begin = end;
  }
}

void QuantizeRun::store_one(size_t layer, const Task& task) {
  throw_if_interrupted();
  at(layer, "solving " + task.planned->linear.name);
  take(layer, task, owns(0) ? solve(task, largest_shared(layer, *task.planned), pool_) : Outcome());
}

void QuantizeRun::store_on_lanes(size_t layer, std::span<const Task> tasks) {
  const int threads = std::max(1, pool_.threads() / job_.lanes);
  while (static_cast<int>(lane_pools_.size()) < job_.lanes)
    lane_pools_.push_back(std::make_unique<ThreadPool>(threads));
  std::vector<float> largest;
  std::vector<bool> mine;
  for (size_t i = 0; i < tasks.size(); ++i) {
    mine.push_back(owns(i));
    largest.push_back(mine[i] ? largest_shared(layer, *tasks[i].planned) : 0);
  }
  std::vector<Outcome> outcomes(tasks.size());
  in_order(
      job_.lanes, tasks.size(),
      [&](int lane, size_t i) {
        throw_if_interrupted();
        if (!mine[i]) return;
        tensor::set_threads(threads);
        const tensor::InferenceScope inference;
        outcomes[i] = solve(tasks[i], largest[i], *lane_pools_[static_cast<size_t>(lane)]);
        outcomes[i].lane = lane;
        outcomes[i].lanes = job_.lanes;
      },
      [&](size_t i) {
        at(layer, "solving " + tasks[i].planned->linear.name);
        take(layer, tasks[i], std::move(outcomes[i]));
      });
  tensor::set_threads(pool_.threads());
}

void QuantizeRun::take(size_t layer, const Task& task, Outcome outcome) {
  const PlannedModule& module = *task.planned;
  double write_seconds = 0;
  if (job_.ranks != nullptr) share(outcome, task, owner(0));
  ++turn_;
  timed(write_seconds, [&] {
    if (output_) now_.digests.merge(output_->write(module, outcome.packed));
    drop_source(*subject_.checkpoint, module.linear);
  });
  now_.stages["solve"] += outcome.solve_seconds / outcome.lanes;
  now_.stages["error"] += outcome.error_seconds / outcome.lanes;
  now_.stages["pack"] += outcome.pack_seconds / outcome.lanes + write_seconds;
  note(layer, outcome, module, write_seconds);
  if (task.module != nullptr) task.module->op = outcome.next;
}

QuantizeRun::Outcome QuantizeRun::solve(const Task& task, float largest, ThreadPool& pool) const {
  const PlannedModule& module = *task.planned;
  const PackSource source = load_source(*subject_.checkpoint, module, job_.compat_gptqmodel);
  Outcome outcome;
  const SolvedModule solved = timed(outcome.solve_seconds, [&] {
    const SolveSettings settings = {*module.format, module.solve, module.fallback, task.lacking, largest};
    return solve_module(source, task.input, settings, pool);
  });
  const double error = task.input.tokens == 0 ? std::nan("") : timed(outcome.error_seconds, [&] {
    return relative_error(source.weight, solved.decoded.weight, task.input);
  });
  outcome.fallback = solved.quantized.fallback;
  const std::string method = outcome.fallback.empty()                    ? job_.method
                             : module.solve.grid.kind == GridKind::nvfp4 ? std::string("nvfp4_mse")
                                                                         : to_text(module.fallback.strategy);
  outcome.report = module_report(solved, method, module, task.input.tokens, error);
  outcome.packed = solved.packed;
  if (task.module != nullptr)
    outcome.next = timed(outcome.pack_seconds, [&] { return replacement(solved, source, subject_.dtype); });
  return outcome;
}

float QuantizeRun::largest_shared(size_t layer, const PlannedModule& module) {
  if (module.solve.grid.kind != GridKind::nvfp4) return 0;
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

void QuantizeRun::share(Outcome& outcome, const Task& task, int owner) {
  Ranks& ranks = *job_.ranks;
  const PlannedModule& module = *task.planned;
  const bool mine = owner == ranks.rank();
  const Json known =
      from_rank(Json{{"report", outcome.report}, {"fallback", outcome.fallback}}, owner, ranks);
  outcome.report = known.at("report");
  outcome.fallback = known.at("fallback");
  outcome.packed = from_rank(outcome.packed, module, owner, ranks);
  if (task.module == nullptr) return;
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
                       double write_seconds) {
  const std::string& name = planned.linear.name;
  const Json& module = outcome.report;
  telemetry_.event("solve", {{"layer", layer},
                             {"module", name},
                             {"method", module.at("method")},
                             {"loss", module.at("loss")},
                             {"relative_error", module.at("relative_error")},
                             {"fallback", module.at("fallback")},
                             {"lane", outcome.lane},
                             {"seconds", outcome.solve_seconds}});
  telemetry_.event("write", {{"layer", layer}, {"module", name}, {"seconds", write_seconds}});
  now_.modules.push_back(module);
  if (outcome.fallback.empty()) return;
  ++now_.fallbacks;
  if (planned.fallback.refuse) unusable_.push_back(name + ": " + outcome.fallback);
  log_.warn(name + ": " + outcome.fallback);
}

}  // namespace gramian
