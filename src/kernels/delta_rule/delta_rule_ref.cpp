#include "kernels/delta_rule/delta_rule_ref.h"

#include <cmath>
#include <vector>

#include "kernels/float16.h"

namespace gramian::reference {
namespace {

// One row's and head's.
std::vector<double> vector_of(const HeadVectors& x, int64_t row, int64_t token, int64_t head, int64_t width) {
  std::vector<double> values(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    const int64_t at = row * x.row_stride + token * x.token_stride + head * x.head_stride + i;
    values[static_cast<size_t>(i)] = x.type == DType::f32 ? static_cast<const float*>(x.data)[at]
                                     : x.type == DType::f16
                                         ? F16::widen(static_cast<const F16::Stored*>(x.data)[at])
                                         : BF16::widen(static_cast<const BF16::Stored*>(x.data)[at]);
  }
  return values;
}

std::vector<double> normalised(std::vector<double> x, double scale) {
  double squares = 1e-6;
  for (const double value : x) squares += value * value;
  for (double& value : x) value *= scale / std::sqrt(squares);
  return x;
}

}  // namespace

void run_delta_head(const DeltaRule& rule, int64_t row, int64_t head) {
  const int64_t d_k = rule.d_k, d_v = rule.d_v, key_head = head / (rule.heads / rule.key_heads);
  float* const stored = rule.state + (row * rule.heads + head) * d_k * d_v;
  std::vector<double> state(stored, stored + d_k * d_v);
  for (int64_t t = 0; t < rule.tokens; ++t) {
    const auto q =
        normalised(vector_of(rule.q, row, t, key_head, d_k), 1 / std::sqrt(static_cast<double>(d_k)));
    const auto k = normalised(vector_of(rule.k, row, t, key_head, d_k), 1);
    const auto v = vector_of(rule.v, row, t, head, d_v);
    std::vector<double> decay = vector_of(rule.g, row, t, head, rule.per_channel ? d_k : 1);
    for (double& x : decay) x = std::exp(x);
    const double beta = vector_of(rule.beta, row, t, head, 1)[0];
    for (int64_t b = 0; b < d_v; ++b) {
      const auto entry = [&](size_t a) -> double& {
        return state[a * static_cast<size_t>(d_v) + static_cast<size_t>(b)];
      };
      double known = 0, out = 0;
      for (size_t a = 0; a < k.size(); ++a) {
        entry(a) *= decay[rule.per_channel ? a : 0];
        known += entry(a) * k[a];
      }
      const double change = beta * (v[static_cast<size_t>(b)] - known);
      for (size_t a = 0; a < k.size(); ++a) {
        entry(a) += k[a] * change;
        out += entry(a) * q[a];
      }
      rule.out[((row * rule.tokens + t) * rule.heads + head) * d_v + b] = static_cast<float>(out);
    }
  }
  for (size_t i = 0; i < state.size(); ++i) stored[i] = static_cast<float>(state[i]);
}

}  // namespace gramian::reference
