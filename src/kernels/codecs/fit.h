// The searches for scales that several codecs share, over runs of values that get one scale each. Sums run in index order,
// products associate to the left.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"

namespace gramian {

// Below this magnitude a run is zero.
inline constexpr float kZeroRun = 1e-15f;

// value = scale * code + min, code in [0, nmax], min <= 0. Candidates for 1 / scale are (start + step * i + nmax) / (max - min),
// i = 0 .. last.
struct AffineRule {
  int nmax = 15;
  float start = -0.9f;
  float step = 0.05f;
  int last = 36;
  bool absolute = false;  // the error is w * |difference| instead of w * difference^2
};

// x, w [runs, length] (length 16 or 32) -> codes [runs, length], scale [runs], minus_min [runs]: the candidate with the smallest error,
// scale and min by least squares.
void affine_fit(CpuLevel level, const AffineRule& rule, const float* x, const float* w, int runs, int length,
                uint8_t* codes, float* scale, float* minus_min) noexcept;

// value = scale * (code - nmax), code in [0, 2 nmax - 1]. x, w [runs, length] -> codes [runs, length] (null: not wanted), scale [runs]. A
// zero run gets codes and scale 0.
void signed_fit(CpuLevel level, int nmax, const float* x, const float* w, int runs, int length,
                uint8_t* codes, float* scale) noexcept;

// The same with eight or, at the AVX-512 levels, sixteen runs in the lanes; on other CPUs than x86-64 they do nothing and are not called.
void affine_fit_lanes(CpuLevel level, const AffineRule& rule, const float* x, const float* w, int runs,
                      int length, uint8_t* codes, float* scale, float* minus_min) noexcept;
void signed_fit_lanes(CpuLevel level, int nmax, const float* x, const float* w, int runs, int length,
                      uint8_t* codes, float* scale) noexcept;

// value = scale * code, code in [0, nmax]: returns the scale. Codes are bytes: those of values that round to less than zero wrap,
// and count as what they wrapped to where they were not chosen anew. a, w, codes [n].
float unsigned_fit(const float* a, const float* w, int n, int nmax, uint8_t* codes) noexcept;

}  // namespace gramian
