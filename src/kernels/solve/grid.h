// Integer grids: scales and zero points of rows, codes of weights. A weight is (code - zero) · scale; codes are signed,
// -2^(bits-1) and up, and so is the zero, 0 on symmetric grids.
//
//   rule                codes of 4 bits   scale                              zero
//   narrow              -7 .. 7           hi / 7, hi = max|x|                0
//   symmetric           -8 .. 7           2 hi / 15; with one_sided          0
//                                         hi / 15 where no entry is negative
//   asymmetric          -8 .. 7           (hi - lo) / 15, lo = min(x, 0),    rne(-lo / scale) - 8
//                                         hi = max(x, 0)
//
// All zero: hi = 1 (and lo = -1). Divisions are fp32 divisions, rounding is half to even, nothing is contracted. With mse =
// p > 0 the scale is searched: candidates f_i = 1 - i/100, i = 0 .. 79, shrink the range; the first strict minimum of
// Σ |(code - zero)·scale - x|^p wins. Of an asymmetric grid of 2 bits every range is tried with both integers beside
// -lo / scale. Method: GPTQ's scalar quantizer as GPT-QModel 7.7.0 runs it for GPTQ and QQQ.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"
#include "kernels/solve/power.h"

namespace gramian {

struct GridRule {
  int bits = 4;
  bool narrow = false;      // QQQ's whole rows: no lowest code
  bool asymmetric = false;  // not with narrow
  bool one_sided = false;
  double mse = 0;  // 0 or the exponent of the error norm; quick from 1 to 6, slow but right elsewhere

  int code_max() const noexcept { return (1 << (bits - 1)) - 1; }
  int code_min() const noexcept { return narrow ? -code_max() : -code_max() - 1; }
  // What the range (narrow: hi) is divided by.
  int steps() const noexcept { return narrow ? code_max() : (1 << bits) - 1; }
  // Ranges with both integers beside the zero point are tried one after the other.
  bool tries_two_zeros() const noexcept { return asymmetric && bits == 2; }
};

inline constexpr int kGridCandidates = 80;  // ranges of a search

// Thread-safe after construction.
class GridScaler {
 public:
  // Throws invalid_argument for bits other than 2 .. 8 and a negative or non-finite norm.
  GridScaler(const GridRule& rule, CpuLevel level);
  const GridRule& rule() const noexcept { return rule_; }

  // x [rows, columns], rows `stride` apart, finite; scale[r · scale_stride] is written, and zero[r · scale_stride] where
  // `zero` is given (asymmetric rules need it). Returns the number of all-zero rows. The bytes do not depend on the CPU level.
  int64_t scales(const float* x, int64_t stride, int64_t rows, int64_t columns, float* scale,
                 int64_t scale_stride, int8_t* zero = nullptr) const;

  // All candidate errors of one row, errors [candidates()], without the early stop of scales(); the
  // winner's index. rule().mse > 0.
  int candidates() const noexcept { return rule_.tries_two_zeros() ? 2 * kGridCandidates : kGridCandidates; }
  int errors(const float* x, int64_t columns, float* errors) const;
  // The same sums in the plainest form (std::pow, double, true divisions); what the fast search is tested
  // against.
  void errors_reference(const float* x, int64_t columns, double* errors) const;

 private:
  struct Range {
    float lo, hi;
  };
  struct Point {
    float scale;
    int zero;
  };
  Range range(const float* x, int64_t columns) const noexcept;
  Point candidate(const Range& range, int index) const noexcept;
  int search(const float* x, int64_t columns, const Range& range, float* scratch,
             float* errors) const noexcept;

  GridRule rule_;
  CpuLevel level_;
  PowerTable power_;
  float shrink_[kGridCandidates];
};

// codes[i] = clamp(rne(x[i] / scale) + zero, code_min, code_max).
void quantize(const float* x, int64_t count, float scale, int zero, const GridRule& rule,
              int8_t* codes) noexcept;

}  // namespace gramian
