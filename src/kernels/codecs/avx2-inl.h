// Eight floats or integers of AVX2 as values, for codecs that hold eight runs in the lanes. No multiply is fused with an addition.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#define GRAMIAN_AVX2 [[gnu::target("avx2"), gnu::always_inline]] inline

namespace gramian {
namespace {

using Floats = float __attribute__((vector_size(32)));
using Ints = int32_t __attribute__((vector_size(32)));

constexpr int kLanes = 8;

GRAMIAN_AVX2 Floats all(float value) noexcept { return _mm256_set1_ps(value); }
GRAMIAN_AVX2 Ints ints(Floats value) noexcept { return reinterpret_cast<Ints>(value); }
GRAMIAN_AVX2 Floats floats(Ints bits) noexcept { return reinterpret_cast<Floats>(bits); }
GRAMIAN_AVX2 Floats magnitude(Floats value) noexcept { return floats(ints(value) & 0x7fffffff); }
GRAMIAN_AVX2 Floats root(Floats value) noexcept { return _mm256_sqrt_ps(value); }
GRAMIAN_AVX2 Floats converted(Ints value) noexcept { return __builtin_convertvector(value, Floats); }
GRAMIAN_AVX2 bool any(Ints mask) noexcept { return _mm256_movemask_ps(floats(mask)) != 0; }
// As nearest() of rounding.h.
GRAMIAN_AVX2 Ints rounded(Floats value) noexcept {
  return (ints(value + 12582912.0f) & 0x007fffff) - 0x00400000;
}
GRAMIAN_AVX2 Ints at_most(Ints value, int limit) noexcept {
  return reinterpret_cast<Ints>(_mm256_min_epi32(reinterpret_cast<__m256i>(value), _mm256_set1_epi32(limit)));
}
GRAMIAN_AVX2 Ints at_least(Ints value, int limit) noexcept {
  return reinterpret_cast<Ints>(_mm256_max_epi32(reinterpret_cast<__m256i>(value), _mm256_set1_epi32(limit)));
}

// Up to eight runs of `length` values -> lanes [length], run r in lane r; the last run fills the lanes that are left.
GRAMIAN_AVX2 void to_lanes(const float* runs, int count, int length, Floats* lanes) noexcept {
  for (int r = 0; r < kLanes; ++r) {
    const float* run = runs + (r < count ? r : count - 1) * length;
    for (int i = 0; i < length; ++i) lanes[i][r] = run[i];
  }
}

}  // namespace
}  // namespace gramian
#endif
