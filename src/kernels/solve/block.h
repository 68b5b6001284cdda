// GPTQ's recursion for one block of columns and a few rows, which do not depend on other rows. Weights lie
// transposed, [columns][kBlockRows], so that the rows fill the vector lanes.
//
// For column i of the block, d = U_ii:  q = (code - zero)·scale,  e_i = (w_i - q) / d,  w_j -= e_i · U_ij for later
// columns j of the block. Every product is rounded before it is subtracted and column j receives its updates
// in the order i = 0, 1, ...: the same bits as the textbook loop. The columns behind the block then receive
// w_j -= Σ_i e_i · U_ij, summed in the order of i. Nothing is contracted, so the bits are the same at every
// CPU level.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"
#include "kernels/solve/product.h"

namespace gramian {

struct SolveBlock {
  int64_t rows = 0;      // 1 .. kBlockRows; the lanes beyond hold zeros (or anything finite)
  int64_t columns = 0;   // 1 .. kBlockColumns
  int64_t trailing = 0;  // columns behind the block
  // [columns + trailing][kBlockRows]; the block's part is left as it was, the trailing part is updated.
  float* weights = nullptr;
  // U_ij, i <= j, of the block, transposed: diagonal_t[j · kBlockColumns + i]; U_jj != 0.
  const float* diagonal_t = nullptr;
  // U_ij of the block's rows and the trailing columns: right[i · right_stride + j]. Not read without trailing
  // columns.
  const float* right = nullptr;
  int64_t right_stride = 0;
  const int32_t* group = nullptr;  // [columns], the group of each column
  const float* scale = nullptr;    // [groups][kBlockRows], finite, not 0, for all lanes
  const float* zero = nullptr;     // [groups][kBlockRows], integers, or null where all are 0
  const bool* dead = nullptr;      // [columns], columns without a part in the loss, or null
  int code_min = -8;
  int code_max = 7;
  int8_t* codes = nullptr;  // out, [rows][codes_stride]
  int64_t codes_stride = 0;
};

// Returns Σ (w - q)² / (2 d²) over the block (terms in fp32, summed per row in fp32, over rows in double).
double solve_block(const SolveBlock& block, CpuLevel level) noexcept;
// The textbook loop, row by row, scalar: what the above is tested against.
double solve_block_reference(const SolveBlock& block) noexcept;

}  // namespace gramian
