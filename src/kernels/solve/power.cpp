#include "kernels/solve/power.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>

namespace gramian {
namespace {

constexpr int kNodes = PowerTable::kDegree + 1;

// Monomial coefficients in t = m - 1.5 of the polynomial through the Chebyshev nodes of [1, 2].
void fit(double p, float* coefficient) {
  double chebyshev[kNodes];
  for (int j = 0; j < kNodes; ++j) {
    double sum = 0;
    for (int k = 0; k < kNodes; ++k) {
      const double angle = std::numbers::pi * (k + 0.5) / kNodes;
      sum += std::pow(1.5 + 0.5 * std::cos(angle), p) * std::cos(j * angle);
    }
    chebyshev[j] = sum * (j == 0 ? 1.0 : 2.0) / kNodes;
  }
  // T_0 = 1, T_1 = y, T_{j+1} = 2 y T_j - T_{j-1}, y = 2 t.
  double previous[kNodes] = {1};
  double current[kNodes] = {0, 1};
  double monomial[kNodes] = {chebyshev[0]};
  for (int j = 1; j < kNodes; ++j) {
    double next[kNodes];
    for (int i = 0; i < kNodes; ++i) {
      monomial[i] += chebyshev[j] * current[i];
      next[i] = (i > 0 ? 2 * current[i - 1] : 0.0) - previous[i];
    }
    std::memcpy(previous, current, sizeof current);
    std::memcpy(current, next, sizeof next);
  }
  for (int i = 0; i < kNodes; ++i) coefficient[i] = static_cast<float>(std::ldexp(monomial[i], i));
}

}  // namespace

PowerTable PowerTable::make(double p) {
  PowerTable table;
  table.binary[0] = 0;
  for (int k = 1; k < kExponents; ++k) table.binary[k] = static_cast<float>(std::exp2(p * (k + kBias - 127)));
  fit(p, table.coefficient);
  return table;
}

float PowerTable::operator()(float x) const noexcept {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  int32_t index = (bits >> 23) - kBias;
  index = index < 0 ? 0 : (index < kExponents ? index : kExponents - 1);
  const int32_t mantissa_bits = (bits & 0x007fffff) | 0x3f800000;
  float mantissa;
  std::memcpy(&mantissa, &mantissa_bits, sizeof mantissa);
  const float t = mantissa - 1.5f;
  const float* c = coefficient;
  const float t2 = t * t;
  const float value =
      (t2 * t2) * (t2 * c[6] + (t * c[5] + c[4])) + (t2 * (t * c[3] + c[2]) + (t * c[1] + c[0]));
  return binary[index] * value;
}

}  // namespace gramian
