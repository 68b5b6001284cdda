// What steps in some columns do to the columns behind them: into_j -= Σ_i step_i · m_ij, summed in the order of i. Rows fill the
// vector lanes and nothing is contracted: the same bits at every CPU level.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"

namespace gramian {

inline constexpr int64_t kBlockColumns = 128;
inline constexpr int64_t kBlockRows = 64;

struct StepProduct {
  int64_t rows = kBlockRows;      // 1 .. kBlockRows; lanes beyond hold anything finite
  const float* steps = nullptr;   // [columns][kBlockRows]
  int64_t columns = 0;            // i
  const float* matrix = nullptr;  // m_ij = matrix[row(i) · stride + j]
  int64_t stride = 0;
  const int32_t* rows_of = nullptr;  // [columns], row(i); null where it is i
  int64_t width = 0;                 // j
  float* into = nullptr;             // [width][kBlockRows]
};

void subtract_product(const StepProduct& product, CpuLevel level) noexcept;

}  // namespace gramian
