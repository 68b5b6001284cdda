// A pause of a QuantizeRun: its modules are solved.
#include <algorithm>

#include "kernels/nvfp4/nvfp4.h"
#include "pipeline/quantize_run.h"

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

}  // namespace

void QuantizeRun::solve_pause(size_t layer, const PauseStatistics& statistics) {
  if (new_statistics_ && statistics.first) new_statistics_->write(statistics);
  const bool factored = method_.statistic == Statistic::hessian;
  // Where the statistic has its full rank.
  const int64_t columns = factored                                        ? statistics.modules[0]->in_features
                          : method_.statistic == Statistic::local_hessian ? nvfp4::kBlock
                                                                          : 0;
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
  if (!factored) {
    for (const auto& [module, planned] : left) {
      deferred_.push_back(
          {planned,
           {.blocks = statistics.blocks, .squares = statistics.squares, .tokens = statistics.tokens},
           lack(*planned, statistics, starved),
           job_.sequential == Sequential::none ? nullptr : module});
    }
    // The forward waits for them, unless it goes on with the original weights.
    if (job_.sequential != Sequential::none) solve_deferred(layer);
    return;
  }
  while (!left.empty()) {
    const SolveOptions solve = left[0].second->solve;
    Factor factor;
    const auto same = std::stable_partition(
        left.begin(), left.end(), [&](const auto& one) { return same_factor(one.second->solve, solve); });
    const auto usable = [&](const auto& one) { return lack(*one.second, statistics, starved).empty(); };
    bool mine = false;
    for (size_t ahead = 0; ahead < static_cast<size_t>(same - left.begin()); ++ahead)
      mine = mine || owns(ahead);
    if (mine && std::any_of(left.begin(), same, usable)) factor = factorize_pause(layer, solve, statistics);
    std::vector<Task> tasks;
    for (auto one = left.begin(); one != same; ++one)
      tasks.push_back({one->second,
                       {.factor = &factor, .hessian = statistics.hessian, .tokens = statistics.tokens},
                       lack(*one->second, statistics, starved),
                       one->first});
    store(layer, tasks);
    left.erase(left.begin(), same);
  }
}

void QuantizeRun::solve_deferred(size_t layer) {
  store(layer, deferred_);
  deferred_.clear();
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

}  // namespace gramian
