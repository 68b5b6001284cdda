// GPTQ's recursion inside one block of columns, for a few rows. Weights lie transposed, [columns][rows], so that the rows
// fill the vector lanes; rows are independent of each other.
//
// For column i with d = U_ii:  q = code·scale,  e_i = (w_i - q) / d,  w_j -= e_i · U_ij for all later columns j.
// Every product is rounded before it is subtracted and column j receives its updates in the order i = 0, 1, ...: the same
// bits as the textbook loop, at every CPU level.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"

namespace gramian {

inline constexpr int64_t kBlockColumns = 128;
inline constexpr int64_t kBlockRows = 64;

struct SolveBlock {
  int64_t rows = 0;               // 1 .. kBlockRows
  int64_t columns = 0;            // 1 .. kBlockColumns
  int64_t stride = 0;             // between two columns of weights, codes and errors, and two groups of scales
  const float* weights = nullptr; // [columns][stride]
  // The factor's block transposed, [columns][kBlockColumns]: upper_t[j][i] = U_ij, i <= j; U_jj != 0.
  const float* upper_t = nullptr;
  const float* scale = nullptr;   // [groups][stride], the group of the block's first column first; never 0
  int64_t first_column = 0;       // column j belongs to group (first_column + j) / group_size
  int64_t group_size = 1;
  const bool* dead = nullptr;     // [columns], columns without a part in the loss, or null
  int code_min = -8;
  int code_max = 7;
  int8_t* codes = nullptr;        // out, [columns][stride]
  float* errors = nullptr;        // out, [columns][stride]: e
};

// Returns Σ (w - q)² / (2 d²) over the block (terms in fp32, summed per row in fp32, over rows in double).
double solve_block(const SolveBlock& block, CpuLevel level) noexcept;
// The textbook loop, row by row, scalar: what the above is tested against.
double solve_block_reference(const SolveBlock& block) noexcept;

}  // namespace gramian
