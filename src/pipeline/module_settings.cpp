#include "pipeline/module_settings.h"

#include "base/error.h"
#include "formats/linear_format.h"

namespace gramian {
namespace {

template <class Value>
void take(Value& value, const std::optional<Value>& given) {
  if (given) value = *given;
}

void order_columns(SolveOptions& solve, const SettingsPatch& patch) {
  if (patch.desc_act.value_or(false) && patch.act_group_aware.value_or(false))
    throw Error(ErrorKind::invalid_argument, "desc_act", "and act_group_aware are two orders of columns",
                "give one of them");
  const auto not_any_more = [&](const std::optional<bool>& given, ColumnOrder order) {
    if (given == false && solve.order == order) solve.order = ColumnOrder::natural;
  };
  not_any_more(patch.desc_act, ColumnOrder::activation);
  not_any_more(patch.act_group_aware, ColumnOrder::group_aware);
  if (patch.desc_act == true) solve.order = ColumnOrder::activation;
  if (patch.act_group_aware == true) solve.order = ColumnOrder::group_aware;
  take(solve.order, patch.order);
  if (solve.grid.group_size != -1 || solve.order != ColumnOrder::group_aware) return;
  if (patch.order)
    throw Error(ErrorKind::invalid_argument, "--order", "group-aware needs groups",
                "leave --group-size -1 out, or choose another order");
  solve.order = ColumnOrder::natural;
}

}  // namespace

ModuleSettings patched(ModuleSettings settings, const SettingsPatch& patch) {
  SolveOptions& solve = settings.solve;
  take(solve.grid.bits, patch.bits);
  take(solve.grid.activation_bits, patch.activation_bits);
  take(solve.grid.group_size, patch.group_size);
  take(solve.grid.symmetric, patch.symmetric);
  take(solve.grid.mse, patch.mse);
  take(solve.damp_percent, patch.damp_percent);
  take(solve.damp_step, patch.damp_step);
  take(solve.static_groups, patch.static_groups);
  if (solve.search.candidates != ScaleSearch::Candidates::largest) take(solve.search, patch.search);
  take(solve.refine, patch.refine);
  take(solve.refine_scales, patch.refine_scales);
  take(solve.grid.codec, patch.type);
  take(solve.grid.anchored, patch.anchored);
  take(solve.importance_weighted, patch.importance_weighted);
  take(settings.fallback, patch.fallback);
  order_columns(solve, patch);
  return settings;
}

bool ModuleRule::names_head() const {
  std::string name = written;
  if (name.starts_with("+:")) name.erase(0, 2);
  if (name.starts_with("^")) name.erase(0, 1);
  if (name.ends_with("$")) name.pop_back();
  return name == kHeadName;
}

const ModuleRule* rule_of(const std::vector<ModuleRule>& rules, const std::string& module) {
  for (const bool exclude : {true, false}) {
    for (const ModuleRule& rule : rules) {
      if (rule.exclude == exclude && rule.pattern.matches(module)) return &rule;
    }
  }
  return nullptr;
}

std::string describe(const ScaleSearch& search) {
  switch (search.candidates) {
    case ScaleSearch::Candidates::largest:
      return "largest magnitudes";
    case ScaleSearch::Candidates::all:
      return "all scales";
    case ScaleSearch::Candidates::multiples:
      return str(search.multiples().size(), " multiples from ", search.start, " to ", search.stop);
  }
  return "";
}

std::string describe(const SolveOptions& solve) {
  const GridOptions& grid = solve.grid;
  if (is_float(grid.kind))
    return (grid.kind == GridKind::fp8 ? "FP8, whole rows" : "NVFP4, " + describe(solve.search)) +
           str(", damp ", solve.damp_percent, ", order ", to_text(solve.order));
  if (grid.codec != nullptr)
    return str(grid.codec->name, grid.anchored ? ", anchored" : "", ", damp ", solve.damp_percent,
               solve.importance_weighted ? ", importance weighted" : "");
  std::string text = str(grid.bits, " bits, ");
  text += grid.group_size == -1 ? std::string("whole rows") : str("groups of ", grid.group_size);
  text += grid.symmetric ? ", symmetric" : ", zero points";
  text += str(", mse ", grid.mse, ", damp ", solve.damp_percent, ", order ", to_text(solve.order));
  if (solve.refine > 0) text += str(", refine ", solve.refine, solve.refine_scales ? "" : " without scales");
  return text + (solve.static_groups ? ", static groups" : "");
}

}  // namespace gramian
