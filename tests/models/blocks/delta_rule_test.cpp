// The delta rule in both forms against scalar loops in double, over row lengths round a chunk, decays from none to such that
// nothing is left, and states handed on.
#include "models/blocks/delta_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/tiny_model.h"
#include "tensor/activations.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_normal;

struct Shape {
  int64_t rows = 2, tokens = 70, key_heads = 2, heads = 4, d_k = 8, d_v = 6;
  bool per_channel = false;
  double decay = 1.0;  // typical -g
};

DeltaRuleInput random_input(const Shape& s, uint32_t seed = 3) {
  const std::vector<int64_t> gates = s.per_channel ? std::vector<int64_t>{s.rows, s.tokens, s.heads, s.d_k}
                                                   : std::vector<int64_t>{s.rows, s.tokens, s.heads};
  return {.q = random_normal({s.rows, s.tokens, s.key_heads, s.d_k}, seed),
          .k = random_normal({s.rows, s.tokens, s.key_heads, s.d_k}, seed + 1),
          .v = random_normal({s.rows, s.tokens, s.heads, s.d_v}, seed + 2),
          // From almost nothing to many times the typical decay, beside each other.
          .g = random_normal(gates, seed + 3).mul(2).exp().mul(-s.decay),
          .beta = random_normal({s.rows, s.tokens, s.heads}, seed + 4).sigmoid().mul(2)};
}

at::Tensor random_state(const Shape& s) { return random_normal({s.rows, s.heads, s.d_k, s.d_v}, 17); }

// The formula, number by number. `state` f64 in place.
at::Tensor naive(const DeltaRuleInput& input, at::Tensor& state) {
  const int64_t rows = input.v.size(0), tokens = input.v.size(1), heads = input.v.size(2);
  const int64_t share = heads / input.k.size(2), d_k = input.k.size(3), d_v = input.v.size(3);
  const auto normed = [](const at::Tensor& x) {
    const at::Tensor wide = x.to(at::kDouble);
    return wide.div(wide.square().sum(-1, true).add(1e-6).sqrt());
  };
  const at::Tensor all_q = normed(input.q).div(std::sqrt(static_cast<double>(d_k))), all_k = normed(input.k);
  at::Tensor gates = input.g.to(at::kDouble);
  if (gates.dim() == 3) gates = gates.unsqueeze(-1).expand({rows, tokens, heads, d_k});
  const at::Tensor all_v = input.v.to(at::kDouble), all_g = gates.contiguous(),
                   all_beta = input.beta.to(at::kDouble);
  at::Tensor out = tensor::zeros(input.v.sizes(), at::kDouble);
  for (int64_t i = 0; i < rows * heads * tokens; ++i) {
    const int64_t t = i % tokens, h = i / tokens % heads, r = i / tokens / heads;
    const int64_t of_key = ((r * tokens + t) * (heads / share) + h / share) * d_k,
                  of_head = (r * tokens + t) * heads + h;
    const double* q = all_q.const_data_ptr<double>() + of_key;
    const double* k = all_k.const_data_ptr<double>() + of_key;
    const double* v = all_v.const_data_ptr<double>() + of_head * d_v;
    const double* g = all_g.const_data_ptr<double>() + of_head * d_k;
    const double beta = all_beta.const_data_ptr<double>()[of_head];
    double* s = state.mutable_data_ptr<double>() + (r * heads + h) * d_k * d_v;
    double* o = out.mutable_data_ptr<double>() + of_head * d_v;
    for (int64_t a = 0; a < d_k * d_v; ++a) s[a] *= std::exp(g[a / d_v]);
    for (int64_t b = 0; b < d_v; ++b) {
      double known = 0;
      for (int64_t a = 0; a < d_k; ++a) known += s[a * d_v + b] * k[a];
      const double change = beta * (v[b] - known);
      for (int64_t a = 0; a < d_k; ++a) s[a * d_v + b] += k[a] * change;
      for (int64_t a = 0; a < d_k; ++a) o[b] += s[a * d_v + b] * q[a];
    }
  }
  return out;
}

double largest(const at::Tensor& x) { return x.abs().max().item<double>(); }

// Errors against double of both forms, relative to the largest number that went into it.
void expect_both_equal_the_formula(const Shape& shape, double bound) {
  SCOPED_TRACE(str(shape.tokens, " tokens, decay ", shape.decay, shape.per_channel ? " per channel" : ""));
  const DeltaRuleInput input = random_input(shape);
  at::Tensor exact_state = random_state(shape).to(at::kDouble);
  const at::Tensor exact = naive(input, exact_state);
  ASSERT_TRUE(exact.isfinite().all().item<bool>());
  for (const auto form : {recurrent_delta_rule, delta_rule}) {
    at::Tensor state = random_state(shape);
    const at::Tensor out = form(input, state);
    EXPECT_LT(max_difference(out, exact), bound * std::max(largest(exact), largest(random_state(shape))));
    EXPECT_LT(max_difference(state, exact_state),
              bound * std::max(largest(exact_state), largest(random_state(shape))));
  }
}

TEST(DeltaRule, BothFormsEqualTheFormula) {
  for (const bool per_channel : {false, true}) {
    for (const int64_t tokens : {1, 2, 3, 31, 63, 64, 65, 100, 128, 129, 200})
      expect_both_equal_the_formula({.tokens = tokens, .per_channel = per_channel, .decay = 0.05}, 2e-6);
  }
}

TEST(DeltaRule, SharedKeyHeads) {
  for (const bool per_channel : {false, true}) {
    for (const int64_t heads : {2, 4, 6})
      expect_both_equal_the_formula(
          {.tokens = 70, .key_heads = 2, .heads = heads, .per_channel = per_channel, .decay = 0.05}, 2e-6);
  }
}

// From no decay at all to one that leaves nothing: e^(-10⁴) a token, beside tokens and channels that forget nothing.
TEST(DeltaRule, AnyDecay) {
  for (const bool per_channel : {false, true}) {
    for (const double decay : {0.0, 1e-6, 1e-3, 1.0, 30.0, 1e4})
      expect_both_equal_the_formula({.tokens = 150, .per_channel = per_channel, .decay = decay}, 3e-6);
  }
}

// A decay that wipes a channel must not take digits from the tokens behind it: exponents are not differences of large sums.
TEST(DeltaRule, AStrongDecayLeavesItsNeighboursTheirDigits) {
  for (const bool per_channel : {false, true}) {
    const Shape shape{.tokens = 128, .per_channel = per_channel, .decay = 1e-4};
    DeltaRuleInput input = random_input(shape);
    for (const int64_t t : {3, 4, 17, 64, 90}) input.g.select(1, t).fill_(-3e4);
    at::Tensor exact_state = random_state(shape).to(at::kDouble), state = random_state(shape);
    const at::Tensor exact = naive(input, exact_state), found = delta_rule(input, state);
    EXPECT_LT(max_difference(found, exact), 3e-6 * largest(exact));
    EXPECT_LT(max_difference(state, exact_state), 3e-6 * largest(exact_state));
  }
}

TEST(DeltaRule, PartsOfARowEqualTheWhole) {
  for (const bool per_channel : {false, true}) {
    const Shape shape{.tokens = 210, .per_channel = per_channel, .decay = 0.05};
    const DeltaRuleInput input = random_input(shape);
    at::Tensor whole_state = random_state(shape), state = random_state(shape);
    const at::Tensor whole = delta_rule(input, whole_state);
    int64_t begin = 0;
    for (const int64_t length : {1, 70, 1, 1, 64, 73}) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, length); };
      const at::Tensor out =
          delta_rule({part(input.q), part(input.k), part(input.v), part(input.g), part(input.beta)}, state);
      EXPECT_LT(max_difference(out, part(whole)), 1e-5);
      begin += length;
    }
    EXPECT_LT(max_difference(state, whole_state), 1e-5);
  }
}

TEST(DeltaRule, RowsAreOnTheirOwn) {
  const Shape shape{.rows = 3, .tokens = 80, .per_channel = true, .decay = 0.05};
  const DeltaRuleInput input = random_input(shape);
  at::Tensor states = random_state(shape);
  const at::Tensor together = delta_rule(input, states);
  for (int64_t r = 0; r < shape.rows; ++r) {
    const auto row = [&](const at::Tensor& x) { return x.narrow(0, r, 1); };
    at::Tensor state = row(random_state(shape)).contiguous();
    const at::Tensor alone =
        delta_rule({row(input.q), row(input.k), row(input.v), row(input.g), row(input.beta)}, state);
    EXPECT_LT(max_difference(alone, row(together)), 1e-6);
  }
}

// Besides its output a call makes no tensor; what the kernel takes is in delta_scratch_bytes.
TEST(DeltaRule, MakesNoTensors) {
  for (const bool per_channel : {false, true}) {
    const Shape shape{.rows = 1, .tokens = 300, .key_heads = 2, .heads = 2, .per_channel = per_channel};
    const DeltaRuleInput input = random_input(shape);
    at::Tensor state = random_state(shape);
    tensor::ActivationStore store(1, "");
    at::Tensor out;
    {
      const tensor::ActivationStore::Scope scope(store, 0);
      out = delta_rule(input, state);
    }
    constexpr int64_t kPage = 4096;
    EXPECT_LT(store.peak_bytes(), static_cast<int64_t>(out.nbytes()) + kPage);
  }
}

}  // namespace
}  // namespace gramian
