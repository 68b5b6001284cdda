#include "kernels/gram/rows.h"

#include "kernels/float16.h"
#include "kernels/wide_vectors.h"

namespace gramian::gram {
namespace {

template <class F>
[[gnu::always_inline]] inline int64_t first_non_finite_typed(const Rows& x) {
  for (int64_t t = 0; t < x.count; ++t) {
    const typename F::Stored* row = x.row<F>(t);
    // Magnitudes order like their bits, with infinity and then NaN on top.
    typename F::Stored largest = 0;
    for (int64_t k = 0; k < x.columns; ++k) {
      const typename F::Stored magnitude = row[k] & F::kMagnitude;
      largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= F::kInfinity) return t;
  }
  return -1;
}

[[gnu::always_inline]] inline int64_t first_non_finite_body(const Rows& x) {
  if (x.type == DType::bf16) return first_non_finite_typed<BF16>(x);
  if (x.type == DType::f16) return first_non_finite_typed<F16>(x);
  return first_non_finite_typed<F32>(x);
}

template <class F>
[[gnu::always_inline]] inline void squares_typed(const Rows& x, int64_t begin, int64_t end,
                                                 double* __restrict sums) {
  for (int64_t t = 0; t < x.count; ++t) {
    const typename F::Stored* row = x.row<F>(t);
    for (int64_t k = begin; k < end; ++k) {
      const double value = F::widen(row[k]);
      sums[k] += value * value;
    }
  }
}

[[gnu::always_inline]] inline void squares_body(const Rows& x, int64_t begin, int64_t end, double* sums) {
  // As many sums as stay in the cache (L1) beside the rows.
  constexpr int64_t kColumns = 2048;
  for (; begin < end; begin += kColumns) {
    const int64_t stop = begin + kColumns < end ? begin + kColumns : end;
    if (x.type == DType::bf16) {
      squares_typed<BF16>(x, begin, stop, sums);
    } else if (x.type == DType::f16) {
      squares_typed<F16>(x, begin, stop, sums);
    } else {
      squares_typed<F32>(x, begin, stop, sums);
    }
  }
}

// The bodies as functions of one level; `target` is the function attribute that selects its instructions.
#define GRAMIAN_ROWS_LEVEL(suffix, target)                                                     \
  target int64_t first_non_finite_##suffix(const Rows& x) { return first_non_finite_body(x); } \
  target void squares_##suffix(const Rows& x, int64_t begin, int64_t end, double* sums) {      \
    squares_body(x, begin, end, sums);                                                         \
  }

GRAMIAN_ROWS_LEVEL(reference, )
#if defined(__x86_64__)
GRAMIAN_ROWS_LEVEL(avx2, [[gnu::target("avx2")]])
GRAMIAN_ROWS_LEVEL(avx512, [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl" GRAMIAN_WIDE_VECTORS)]])
#endif

struct Functions {
  decltype(&first_non_finite_reference) non_finite;
  decltype(&squares_reference) squares;
};

Functions functions(CpuLevel level) {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return {first_non_finite_avx512, squares_avx512};
  if (level >= CpuLevel::avx2) return {first_non_finite_avx2, squares_avx2};
#else
  static_cast<void>(level);
#endif
  return {first_non_finite_reference, squares_reference};
}

}  // namespace

Rows Rows::slice(int64_t first, int64_t tokens) const noexcept {
  Rows part = *this;
  part.count = tokens;
  if (index != nullptr) {
    part.index = index + first;
  } else {
    part.data =
        static_cast<const std::byte*>(data) + first * stride * static_cast<int64_t>(dtype_bytes(type));
  }
  return part;
}

int64_t first_non_finite(CpuLevel level, const Rows& x) noexcept { return functions(level).non_finite(x); }

void add_column_squares(CpuLevel level, const Rows& x, int64_t begin, int64_t end, double* sums) noexcept {
  functions(level).squares(x, begin, end, sums);
}

}  // namespace gramian::gram
