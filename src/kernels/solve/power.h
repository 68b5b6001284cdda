// x^p for a fixed p and 0 <= x < 4 as a table over the exponent times a polynomial over the mantissa: no
// logarithm, no exponential, and the same bits at every vector width.
#pragma once

namespace gramian {

struct PowerTable {
  static constexpr int kDegree = 6;
  static constexpr int kExponents = 32;
  // Entry k of `binary` stands for x in [2^(k-30), 2^(k-29)), biased exponent k + 97.
  static constexpr int kBias = 97;

  // 2^(p·(k-30)); entry 0 is 0: x < 2^-29 counts as nothing.
  float binary[kExponents];
  // m^p = Σ c_i (m - 1.5)^i for a mantissa m in [1, 2).
  float coefficient[kDegree + 1];

  // Relative error below 1e-6 for p in [1, 4], 2e-6 up to 6 (unless the result is subnormal).
  static PowerTable make(double p);
  float operator()(float x) const noexcept;
};

}  // namespace gramian
