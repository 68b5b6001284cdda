// How codes are chosen and stored: the options of `gramian quantize` that name recipe, method, format, grid and solver.
#pragma once

#include <optional>
#include <string>

#include "cli/common.h"
#include "pipeline/quantize.h"
#include "pipeline/recipe.h"

namespace gramian::cli {

// What is not given is the recipe's, else the method's.
struct SolveFlags {
  std::filesystem::path recipe;
  std::optional<std::string> method, format;
  SettingsPatch settings;
  bool asymmetric = false, symmetric = false, desc_act = false, static_groups = false;
  std::optional<std::string> multiples;
  std::optional<std::string> type, encoder;
  bool importance_weighted = false;
  std::optional<std::string> order, fallback, smoother, threshold;
  bool no_fallback = false;
  std::optional<int> head_bits;
  bool untie = false;
  std::string target;
};

void add_solve_flags(CLI::App& verb, SolveFlags& flags);
// Sets the job's method, format, settings and rules, and what else a recipe says. An unknown method is left to quantize(), which
// names everything that is wrong. Throws invalid_argument for a word that an option does not know, corrupt_data for a recipe that
// does not read.
void settle_solve(const SolveFlags& flags, QuantizeJob& job);
// The same with a recipe that is read already; `flags.recipe` is not.
void settle_solve(const SolveFlags& flags, const Recipe& recipe, QuantizeJob& job);

}  // namespace gramian::cli
