// Token rows as the kernels of this folder read them.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu_level.h"

namespace gramian::gram {

// X [count, columns]: token t is row index[t] of the memory (row t without an index), its columns lie side by
// side.
struct Rows {
  DType type = DType::f32;  // f32, f16 or bf16
  const void* data = nullptr;
  int64_t stride = 0;              // elements from row to row; rows may overlap or run backwards
  const int64_t* index = nullptr;  // [count] or null
  int64_t count = 0;               // T >= 0
  int64_t columns = 0;             // K >= 1

  // Token t; F is F32, F16 or BF16 (kernels/float16.h), as `type` says.
  template <class F>
  [[gnu::always_inline]] const typename F::Stored* row(int64_t t) const noexcept {
    return static_cast<const typename F::Stored*>(data) + (index != nullptr ? index[t] : t) * stride;
  }
  // The tokens first .. first + tokens - 1.
  Rows slice(int64_t first, int64_t tokens) const noexcept;
};

// The first token that holds an infinity or a NaN; -1 when there is none. Any thread.
int64_t first_non_finite(CpuLevel level, const Rows& x) noexcept;

// s_k += Σ_t x_tk² for begin <= k < end, in float64 and in the order of t. A square of two such floats is exact in
// float64, so the bits are the same at every level and however the tokens are divided into calls. sums [columns].
// Any thread; disjoint column ranges may run in parallel.
void add_column_squares(CpuLevel level, const Rows& x, int64_t begin, int64_t end, double* sums) noexcept;

}  // namespace gramian::gram
