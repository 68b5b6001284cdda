// affine_fit() and signed_fit() with eight or sixteen runs in the lanes.
#include "kernels/codecs/fit.h"
#include "kernels/wide_vectors.h"

#if defined(__x86_64__)
#include <immintrin.h>

// g++ 12 warns of registers that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace gramian {
#if defined(__x86_64__)
namespace {

#define GRAMIAN_BODY "kernels/codecs/fit-inl.h"
#include "kernels/codecs/each_wide_level.h"

}  // namespace

void affine_fit_lanes(CpuLevel level, const AffineRule& rule, const float* x, const float* w, int runs,
                      int length, uint8_t* codes, float* scale, float* minus_min) noexcept {
  // Eight runs do not fill sixteen lanes.
  const auto fit = level >= CpuLevel::avx512 && runs > 8 ? avx512::affine_fit : avx2::affine_fit;
  fit(rule, x, w, runs, length, codes, scale, minus_min);
}

void signed_fit_lanes(CpuLevel level, int nmax, const float* x, const float* w, int runs, int length,
                      uint8_t* codes, float* scale) noexcept {
  const auto fit = level >= CpuLevel::avx512 && runs > 8 ? avx512::signed_fit : avx2::signed_fit;
  fit(nmax, x, w, runs, length, codes, scale);
}
#else
void affine_fit_lanes(CpuLevel, const AffineRule&, const float*, const float*, int, int, uint8_t*, float*,
                      float*) noexcept {}
void signed_fit_lanes(CpuLevel, int, const float*, const float*, int, int, uint8_t*, float*) noexcept {}
#endif

}  // namespace gramian
