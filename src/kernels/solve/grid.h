// The symmetric integer grid of QQQ: scales of rows, codes of weights.
//
//   rule      codes (4 bits)   scale from hi = max|x|
//   per row   -7 .. 7          hi / 7
//   grouped   -8 .. 7          2 hi / 15; with one_sided hi / 15 where the group has no negative entry
//
// All zero: hi = 1. Divisions are fp32 divisions, rounding is half to even, nothing is contracted. With mse =
// p > 0 the scale is searched: candidates f_i = 1 - i/100, i = 0 .. 79, take f_i·hi in place of hi; the first
// strict minimum of Σ |code·scale - x|^p wins. Method: GPTQ's scalar quantizer as GPT-QModel 7.7.0 runs it
// for QQQ.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"
#include "kernels/solve/power.h"

namespace gramian {

struct GridRule {
  int bits = 4;
  bool grouped = true;
  bool one_sided = false;
  double mse = 0;  // 0 or the exponent of the error norm; quick from 1 to 6, slow but right elsewhere

  int code_max() const noexcept { return (1 << (bits - 1)) - 1; }
  int code_min() const noexcept { return grouped ? -code_max() - 1 : -code_max(); }
  // What the range (grouped) or hi (per row) is divided by.
  int steps() const noexcept { return grouped ? (1 << bits) - 1 : code_max(); }
};

inline constexpr int kGridCandidates = 80;

// Thread-safe after construction.
class GridScaler {
 public:
  // Throws invalid_argument for bits other than 2 .. 8 and a negative or non-finite norm.
  GridScaler(const GridRule& rule, CpuLevel level);
  const GridRule& rule() const noexcept { return rule_; }

  // x [rows, columns], rows `stride` apart, finite; scale[r · scale_stride] is written. Returns the number of
  // all-zero rows. The bytes do not depend on the CPU level.
  int64_t scales(const float* x, int64_t stride, int64_t rows, int64_t columns, float* scale,
                 int64_t scale_stride) const;

  // All candidate errors of one row, errors [kGridCandidates], without the early stop of scales(); the
  // winner's index. rule().mse > 0.
  int errors(const float* x, int64_t columns, float* errors) const;
  // The same sums in the plainest form (std::pow, double, true divisions); what the fast search is tested
  // against.
  void errors_reference(const float* x, int64_t columns, double* errors) const;

 private:
  struct Range {
    float lo, hi;
  };
  Range range(const float* x, int64_t columns) const noexcept;
  float candidate(const Range& range, int index) const noexcept;
  int search(const float* x, int64_t columns, const Range& range, float* scratch,
             float* errors) const noexcept;

  GridRule rule_;
  CpuLevel level_;
  PowerTable power_;
  float shrink_[kGridCandidates];
};

// codes[i] = clamp(rne(x[i] / scale), code_min, code_max).
void quantize(const float* x, int64_t count, float scale, const GridRule& rule, int8_t* codes) noexcept;

}  // namespace gramian
