// How single modules are quantized: what a recipe, its rules and flags change, and which rule a module has (docs/recipes.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/gguf/type_mix.h"
#include "formats/module_patterns.h"
#include "solve/fallback.h"
#include "solve/quantized.h"

namespace gramian {

struct ModuleSettings {
  SolveOptions solve;
  FallbackOptions fallback;  // where the Hessian does not factor, or too few tokens came
};

// What is not given stays as it was.
struct SettingsPatch {
  std::optional<int> bits, activation_bits;
  std::optional<int64_t> group_size;
  std::optional<bool> symmetric, static_groups;
  std::optional<bool> desc_act, act_group_aware;  // other words for two values of `order`
  std::optional<ColumnOrder> order;
  std::optional<double> mse, damp_percent, damp_step;
  std::optional<ScaleSearch> search;
  std::optional<const Codec*> type;  // of a GGUF file's blocks
  const gguf::TypeMix* type_mix =
      nullptr;  // where `type` is most modules' one of it; of a recipe's defaults alone
  std::optional<bool> anchored, importance_weighted;
  std::optional<int> refine;
  std::optional<bool> refine_scales;
  std::optional<FallbackOptions> fallback;
};

// Whole rows have no groups to be ordered: the group-aware order becomes the natural one. Throws invalid_argument where that
// was asked for by `order`, and for two orders at a time.
ModuleSettings patched(ModuleSettings settings, const SettingsPatch& patch);

struct ModuleRule {
  std::string written;  // as the recipe has it: "-:.*\\.k_proj"
  ModulePattern pattern;
  bool exclude = false;  // the module stays as it is
  SettingsPatch patch;
  bool may_be_unused = false;  // another program's, which says it for every model
  // Whether the rule is the head's alone: it then asks for a quantized head.
  bool names_head() const;
};

// The one rule that a module has: the first that matches, of which those that exclude stand first. nullptr: none.
const ModuleRule* rule_of(const std::vector<ModuleRule>& rules, const std::string& module);

// "all scales", "39 multiples from 0.25 to 4".
std::string describe(const ScaleSearch& search);
// "4 bits, groups of 128, symmetric, order group-aware": what the report and `inspect` say.
std::string describe(const SolveOptions& solve);

}  // namespace gramian
