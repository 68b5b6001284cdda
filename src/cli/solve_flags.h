// How codes are chosen and stored: the options of `gramian quantize` that name method, format, grid and solver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/common.h"
#include "pipeline/quantize.h"

namespace gramian::cli {

// What is not given is the method's.
struct SolveFlags {
  std::optional<std::string> format;
  std::optional<int> bits, activation_bits;
  std::optional<int64_t> group_size;
  std::optional<double> mse, damp_percent, damp_step;
  bool asymmetric = false, symmetric = false, desc_act = false, static_groups = false;
  std::optional<std::string> order;
  std::optional<int> refine;
  bool refine_scales = true;
  std::string fallback = "rtn", smoother = "none";
};

void add_solve_flags(CLI::App& verb, QuantizeJob& job, SolveFlags& flags);
// Sets job.solve, job.format and job.fallback. An unknown method is left to quantize(), which names everything that is wrong.
// Throws invalid_argument for a word that an option does not know.
void settle_solve(const SolveFlags& flags, QuantizeJob& job);

}  // namespace gramian::cli
