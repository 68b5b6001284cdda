// What a solver hands to a format: integer codes and their scales, with what the report wants to know.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>

namespace gramian {

// The QQQ grid: 4-bit symmetric, one scale per group of `group_size` columns (128) or per row (-1).
struct GridOptions {
  int64_t group_size = 128;
  // Exponent of the error norm of the scale search; 0 takes the scale from the largest magnitude.
  double mse = 2.4;
  // GPT-QModel 7.7.0's one-sided range for groups without negative entries, instead of the full symmetric
  // range.
  bool one_sided_range = false;
};

struct SolveOptions {
  GridOptions grid;
  // λ = damp_percent · mean(diag H), raised by damp_step · mean until the matrix factors.
  double damp_percent = 0.005;
  double damp_step = 0.001;
  // All group scales from the weights before any error compensation.
  bool static_groups = false;
  // Clear the weights of columns that calibration never excited, as GPT-QModel does; else they are rounded.
  bool clear_dead_columns = false;
  // Let error compensation fill groups of weights that are all zero, as GPT-QModel does; else they stay zero.
  bool fill_zero_groups = false;
};

struct QuantizedLinear {
  at::Tensor codes;        // int8 [N, K], signed: -8..7 grouped, -7..7 per row
  at::Tensor scale;        // f32 [N, K / group_size]
  int64_t group_size = 0;  // resolved: K for one scale per row
  // Σ (w - q)² / (2 U_kk²) over all weights, divided by the number of token rows; NaN where no Hessian was
  // used.
  double loss = std::numeric_limits<double>::quiet_NaN();
  double damp = 0;  // absolute λ added to the diagonal
  int damp_attempts = 0;
  // Mean over median of the Hessian's diagonal without dead columns; NaN where no Hessian was used.
  double diagonal_spread = std::numeric_limits<double>::quiet_NaN();
  int64_t dead_columns = 0;
  int64_t zero_groups = 0;  // groups (rows for one scale per row) whose weights are all zero
  std::string fallback;     // why plain rounding was used instead; empty when it was not
};

}  // namespace gramian
