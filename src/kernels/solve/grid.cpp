#include "kernels/solve/grid.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace gramian {
namespace {

// Candidates in the lanes: x is rounded to code · scale, least <= code <= most.
struct Candidates {
  static constexpr int kLanesMax = 16;
  float scale[kLanesMax], least[kLanesMax], most[kLanesMax];
};

#define GRAMIAN_BODY "kernels/solve/search-inl.h"
#include "kernels/each_level.h"

// The polynomial's range, and the norms for which differences below 2^-29 of the largest weight may count as
// zero.
bool has_fast_power(double p) { return p >= 1 && p <= 6; }

// x · 2^exponent, exact unless it leaves the range of fp32; the power itself may.
float scale_by_power_of_two(float x, int exponent) {
  const int half = exponent / 2;
  return x * std::ldexp(1.0f, half) * std::ldexp(1.0f, exponent - half);
}

}  // namespace

GridScaler::GridScaler(const GridRule& rule, CpuLevel level)
    : rule_(rule), level_(level), power_(PowerTable::make(has_fast_power(rule.mse) ? rule.mse : 2.0)) {
  if (rule.bits < 2 || rule.bits > 8) {
    throw Error(ErrorKind::invalid_argument, "", str("grid of ", rule.bits, " bits"), "use 2 to 8");
  }
  if (rule.narrow && rule.asymmetric)
    throw Error(ErrorKind::internal, "", "a narrow grid has no zero points");
  if (!(rule.mse >= 0) || !std::isfinite(rule.mse)) {
    throw Error(ErrorKind::invalid_argument, "", str("error norm mse = ", rule.mse),
                "use 0 (off) or a positive exponent");
  }
  for (int i = 0; i < kGridCandidates; ++i) shrink_[i] = static_cast<float>(1.0 - i / 100.0);
}

GridScaler::Range GridScaler::range(const float* x, int64_t columns) const noexcept {
  float lo = 0, hi = 0;
  for (int64_t j = 0; j < columns; ++j) {
    lo = x[j] < lo ? x[j] : lo;
    hi = x[j] > hi ? x[j] : hi;
  }
  if (rule_.asymmetric) return lo == 0 && hi == 0 ? Range{-1, 1} : Range{lo, hi};
  const bool one_sided = rule_.one_sided && lo == 0;
  hi = std::max(-lo, hi);
  if (hi == 0) return {-1, 1};
  return {one_sided ? 0 : -hi, hi};
}

// A scale that underflows to 0 becomes the smallest normal number, so that divisions by it stay finite.
GridScaler::Point GridScaler::candidate(const Range& range, int index) const noexcept {
  const bool second_zero = rule_.tries_two_zeros() && index % 2 == 1;
  const float shrink = shrink_[rule_.tries_two_zeros() ? index / 2 : index];
  const float lo = shrink * range.lo;
  const float hi = shrink * range.hi;
  float scale = (rule_.narrow ? hi : hi - lo) / static_cast<float>(rule_.steps());
  if (scale == 0) scale = FLT_MIN;
  if (!rule_.asymmetric) return {scale, 0};
  const float exact = -lo / scale;
  float zero = std::nearbyint(exact);
  if (second_zero) zero = zero == std::floor(exact) ? std::ceil(exact) : std::floor(exact);
  return {scale, static_cast<int>(std::min(zero, static_cast<float>(rule_.steps()))) + rule_.code_min()};
}

// The row is brought to hi in [1, 2) by a power of two, which changes no digit: the sums cannot leave fp32,
// and the power needs a small table only. One-sided rules are the peer's: its unscaled sums may overflow or
// vanish, which decides.
int GridScaler::search(const float* x, int64_t columns, const Range& range, float* scratch,
                       float* errors) const noexcept {
  const int exponent = std::ilogb(std::max(-range.lo, range.hi));
  for (int64_t j = 0; j < columns; ++j) scratch[j] = scale_by_power_of_two(x[j], -exponent);
  const Range unit = {scale_by_power_of_two(range.lo, -exponent), scale_by_power_of_two(range.hi, -exponent)};
  const double back = std::exp2(exponent * rule_.mse);
  const auto seen = [&](float total) {
    return rule_.one_sided || errors ? static_cast<float>(total * back) : total;
  };
  int lanes = 4;
  auto* run = &baseline::candidate_errors;
#if defined(__x86_64__)
  if (level_ >= CpuLevel::avx512) {
    lanes = 16;
    run = &avx512::candidate_errors;
  } else if (level_ >= CpuLevel::avx2) {
    lanes = 8;
    run = &avx2::candidate_errors;
  }
#endif
  int best = 0;
  float best_seen = std::numeric_limits<float>::infinity();
  float limit = std::numeric_limits<float>::infinity();
  for (int first = 0; first < candidates(); first += lanes) {
    Candidates tried;
    float totals[Candidates::kLanesMax];
    for (int lane = 0; lane < lanes; ++lane) {
      const Point point = candidate(unit, first + lane);
      tried.scale[lane] = point.scale;
      tried.least[lane] = static_cast<float>(rule_.code_min() - point.zero);
      tried.most[lane] = static_cast<float>(rule_.code_max() - point.zero);
    }
    run(scratch, columns, power_, tried, errors ? std::numeric_limits<float>::infinity() : limit, totals);
    for (int lane = 0; lane < lanes; ++lane) {
      const float total = seen(totals[lane]);
      if (errors) errors[first + lane] = total;
      if (!(total < best_seen)) continue;
      best = first + lane;
      best_seen = total;
      limit = totals[lane];
    }
  }
  return best;
}

int64_t GridScaler::scales(const float* x, int64_t stride, int64_t rows, int64_t columns, float* scale,
                           int64_t scale_stride, int8_t* zero) const {
  std::vector<float> scratch(rule_.mse > 0 ? columns : 0);
  int64_t zero_rows = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const float* values = x + row * stride;
    const Range limits = range(values, columns);
    int index = 0;
    const bool empty = std::all_of(values, values + columns, [](float value) { return value == 0; });
    zero_rows += empty;
    if (rule_.mse > 0 && !empty) {
      if (has_fast_power(rule_.mse)) {
        index = search(values, columns, limits, scratch.data(), nullptr);
      } else {
        double errors[2 * kGridCandidates];
        errors_reference(values, columns, errors);
        for (int i = 1; i < candidates(); ++i) index = errors[i] < errors[index] ? i : index;
      }
    }
    const Point point = candidate(limits, index);
    scale[row * scale_stride] = point.scale;
    if (zero != nullptr) zero[row * scale_stride] = static_cast<int8_t>(point.zero);
  }
  return zero_rows;
}

int GridScaler::errors(const float* x, int64_t columns, float* errors) const {
  if (has_fast_power(rule_.mse)) {
    std::vector<float> scratch(columns);
    return search(x, columns, range(x, columns), scratch.data(), errors);
  }
  double exact[2 * kGridCandidates];
  errors_reference(x, columns, exact);
  std::copy(exact, exact + candidates(), errors);
  return static_cast<int>(std::min_element(exact, exact + candidates()) - exact);
}

void GridScaler::errors_reference(const float* x, int64_t columns, double* errors) const {
  const Range limits = range(x, columns);
  for (int i = 0; i < candidates(); ++i) {
    const auto [scale, zero] = candidate(limits, i);
    errors[i] = 0;
    for (int64_t j = 0; j < columns; ++j) {
      const float rounded = std::nearbyint(x[j] / scale);
      const float code = std::clamp(rounded, static_cast<float>(rule_.code_min() - zero),
                                    static_cast<float>(rule_.code_max() - zero));
      const float error = code * scale - x[j];
      errors[i] += std::pow(std::fabs(static_cast<double>(error)), rule_.mse);
    }
  }
}

void quantize(const float* x, int64_t count, float scale, int zero, const GridRule& rule,
              int8_t* codes) noexcept {
  const auto lo = static_cast<float>(rule.code_min() - zero);
  const auto hi = static_cast<float>(rule.code_max() - zero);
  for (int64_t i = 0; i < count; ++i) {
    // Clamping to integers and rounding commute; 1.5·2^23 rounds half to even.
    float code = x[i] / scale;
    code = code > lo ? code : lo;
    code = code < hi ? code : hi;
    codes[i] = static_cast<int8_t>(static_cast<int>((code + 12582912.0f) - 12582912.0f) + zero);
  }
}

}  // namespace gramian
