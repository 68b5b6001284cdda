// The factor that error compensation runs on: U = R⁻¹ of a symmetric positive definite A = R Rᵀ, R upper triangular, so
// that Uᵀ U = A⁻¹. In place, fp32; the diagonal tiles (kPanel x kPanel) in float64.
//
// Products are fused into sums of at most kBlock terms, each subtracted from the entry; the order never depends on
// threads. AVX2 and AVX-512 give the same bits; the reference level rounds products before it adds them.
#pragma once

#include <cstdint>

#include "base/parallel.h"
#include "kernels/cpu_level.h"

namespace gramian::factor {

inline constexpr int64_t kPanel = 48;  // columns packed side by side, and the width of a diagonal tile
inline constexpr int64_t kBlock = 5 * kPanel;  // rows finished together, and the terms of a sum

// Overwrites a [K, K] (stride elements from row to row) by U, zeros below its diagonal. Only the lower triangle is read.
// False when a pivot is not positive and finite: `a` then holds nothing of use. U itself may overflow: finite entries
// are the caller's to check. `pool` may be null: the calling thread does it all.
bool invert_factor(CpuLevel level, float* a, int64_t columns, int64_t stride, ThreadPool* pool);

// Whether invert_factor would find its pivots, for half the work. Overwrites `a`.
bool factors(CpuLevel level, float* a, int64_t columns, int64_t stride, ThreadPool* pool);

// Memory that either of them takes meanwhile.
int64_t workspace_bytes(int64_t columns) noexcept;

}  // namespace gramian::factor
