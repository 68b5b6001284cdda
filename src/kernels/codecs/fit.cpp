#include "kernels/codecs/fit.h"

#include <algorithm>
#include <cmath>

#include "kernels/codecs/rounding.h"

namespace gramian {
namespace {

constexpr int kLengthMax = 32;

// One run; see affine_fit().
void affine_run(const AffineRule& rule, const float* x, const float* w, int n, uint8_t* codes, float* scale,
                float* minus_min) noexcept {
  float min = x[0], max = x[0], sum_w = w[0], sum_x = w[0] * x[0];
  for (int i = 1; i < n; ++i) {
    min = x[i] < min ? x[i] : min;
    max = x[i] > max ? x[i] : max;
    sum_w += w[i];
    sum_x += w[i] * x[i];
  }
  min = min > 0 ? 0 : min;
  *scale = 0;
  *minus_min = -min;
  std::fill_n(codes, n, uint8_t{0});
  if (max <= min) return;

  const auto error = [&](const uint8_t* l, float with_scale, float with_min) {
    float sum = 0;
    for (int i = 0; i < n; ++i) {
      const float difference = with_scale * static_cast<float>(l[i]) + with_min - x[i];
      sum += w[i] * (rule.absolute ? std::fabs(difference) : difference * difference);
    }
    return sum;
  };
  const auto round_all = [&](float inverse, uint8_t* l) {
    for (int i = 0; i < n; ++i)
      l[i] = static_cast<uint8_t>(clamped(nearest(inverse * (x[i] - min)), 0, rule.nmax));
  };
  const auto nmax = static_cast<float>(rule.nmax);
  const float inverse = nmax / (max - min);
  *scale = 1 / inverse;
  round_all(inverse, codes);
  float best = error(codes, *scale, min);
  for (int step = 0; step <= rule.last; ++step) {
    // The min is the one taken so far.
    uint8_t l[kLengthMax];
    round_all((rule.start + rule.step * static_cast<float>(step) + nmax) / (max - min), l);
    float sum_l = 0, sum_ll = 0, sum_xl = 0;
    for (int i = 0; i < n; ++i) {
      const auto code = static_cast<float>(l[i]);
      sum_l += w[i] * code;
      sum_ll += w[i] * code * code;
      sum_xl += w[i] * code * x[i];
    }
    const float determinant = sum_w * sum_ll - sum_l * sum_l;
    if (!(determinant > 0)) continue;
    float this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    float this_min = (sum_ll * sum_x - sum_l * sum_xl) / determinant;
    if (this_min > 0) {
      this_min = 0;
      this_scale = sum_xl / sum_ll;
    }
    const float this_error = error(l, this_scale, this_min);
    if (!(this_error < best)) continue;
    std::copy_n(l, n, codes);
    best = this_error;
    *scale = this_scale;
    min = this_min;
  }
  *minus_min = -min;
}

// One run; see signed_fit().
void signed_run(int nmax, const float* x, const float* w, int n, uint8_t* codes, float* scale) noexcept {
  uint8_t unwanted[kLengthMax];
  if (codes == nullptr) codes = unwanted;
  float largest = 0, value = 0;
  for (int i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    if (magnitude > largest) largest = magnitude, value = x[i];
  }
  *scale = 0;
  std::fill_n(codes, n, uint8_t{0});
  if (largest < kZeroRun) return;

  float sum_xl = 0, sum_ll = 0;
  const auto try_inverse = [&](float inverse, uint8_t* l) {
    sum_xl = sum_ll = 0;
    for (int i = 0; i < n; ++i) {
      const int code = clamped(nearest(inverse * x[i]), -nmax, nmax - 1);
      const auto level = static_cast<float>(code);
      l[i] = static_cast<uint8_t>(code + nmax);
      sum_xl += w[i] * x[i] * level;
      sum_ll += w[i] * level * level;
    }
  };
  try_inverse(-static_cast<float>(nmax) / value, codes);
  *scale = sum_ll != 0 ? sum_xl / sum_ll : 0;
  float best = *scale * sum_xl;
  for (int step = -9; step <= 9; ++step) {
    if (step == 0) continue;
    uint8_t l[kLengthMax];
    try_inverse(-(static_cast<float>(nmax) + 0.1f * static_cast<float>(step)) / value, l);
    if (!(sum_ll > 0 && sum_xl * sum_xl > best * sum_ll)) continue;
    std::copy_n(l, n, codes);
    *scale = sum_xl / sum_ll;
    best = *scale * sum_xl;
  }
}

}  // namespace

void affine_fit(CpuLevel level, const AffineRule& rule, const float* x, const float* w, int runs, int length,
                uint8_t* codes, float* scale, float* minus_min) noexcept {
  if (level >= CpuLevel::avx2)
    return affine_fit_lanes(level, rule, x, w, runs, length, codes, scale, minus_min);
  for (int r = 0; r < runs; ++r, x += length, w += length, codes += length)
    affine_run(rule, x, w, length, codes, scale + r, minus_min + r);
}

void signed_fit(CpuLevel level, int nmax, const float* x, const float* w, int runs, int length,
                uint8_t* codes, float* scale) noexcept {
  if (level >= CpuLevel::avx2) return signed_fit_lanes(level, nmax, x, w, runs, length, codes, scale);
  for (int r = 0; r < runs; ++r, x += length, w += length)
    signed_run(nmax, x, w, length, codes == nullptr ? nullptr : codes + r * length, scale + r);
}

float unsigned_fit(const float* a, const float* w, int n, int nmax, uint8_t* codes) noexcept {
  float largest = 0;
  for (int i = 0; i < n; ++i) largest = a[i] > largest ? a[i] : largest;
  std::fill_n(codes, n, uint8_t{0});
  if (largest < kZeroRun) return 0;

  const auto top = static_cast<float>(nmax);
  const auto rounded = [&](float inverse, int i) {
    const int code = nearest(inverse * a[i]);
    return code > nmax ? nmax : code;
  };
  float inverse = top / largest;
  float best = 0;
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(nearest(inverse * a[i]));
    const float t = a[i] - 1 / inverse * static_cast<float>(codes[i]);
    best += w[i] * t * t;
  }
  for (int step = -4; step <= 4; ++step) {
    if (step == 0) continue;
    const float candidate = (0.1f * static_cast<float>(step) + top) / largest;
    const float scale = 1 / candidate;
    float error = 0;
    for (int i = 0; i < n; ++i) {
      const float t = a[i] - scale * static_cast<float>(rounded(candidate, i));
      error += w[i] * t * t;
    }
    if (error < best) best = error, inverse = candidate;
  }
  float sum_la = 0, sum_ll = 0;
  for (int i = 0; i < n; ++i) {
    const int code = rounded(inverse, i);
    codes[i] = static_cast<uint8_t>(code);
    const auto l = static_cast<float>(code);
    sum_la += w[i] * a[i] * l;
    sum_ll += w[i] * l * l;
  }
  // One code at a time, where that raises the (squared) projection.
  for (int sweep = 0; sweep < 5; ++sweep) {
    bool changed = false;
    for (int i = 0; i < n; ++i) {
      const auto l = static_cast<float>(codes[i]);
      float p = sum_la - w[i] * a[i] * l;
      float r = sum_ll - w[i] * l * l;
      if (!(p > 0 && r > 0)) continue;
      int code = nearest(a[i] * r / p);
      code = code > nmax ? nmax : code;
      if (code == codes[i]) continue;
      const auto m = static_cast<float>(code);
      p += w[i] * a[i] * m;
      r += w[i] * m * m;
      if (!(p * p * sum_ll > sum_la * sum_la * r)) continue;
      codes[i] = static_cast<uint8_t>(code);
      sum_la = p;
      sum_ll = r;
      changed = true;
    }
    if (!changed) break;
  }
  return sum_ll > 0 ? sum_la / sum_ll : 0;
}

}  // namespace gramian
