// The short convolution against its formula, and memories that start with a row and go on behind it.
#include "models/blocks/delta_memory.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/blocks/gated_norm.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::TinyModel;

TEST(CausalConv, EqualsTheFormula) {
  const at::Tensor x = random_normal({2, 9, 5}, 1), weight = random_normal({5, 4}, 2);
  at::Tensor tail;
  const at::Tensor found = causal_conv_silu(x, weight, tail);
  ASSERT_EQ(found.sizes(), x.sizes());
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t t = 0; t < 9; ++t) {
      for (int64_t c = 0; c < 5; ++c) {
        double sum = 0;
        for (int64_t j = std::max<int64_t>(0, 3 - t); j < 4; ++j)
          sum += weight[c][j].item<double>() * x[r][t - 3 + j][c].item<double>();
        EXPECT_NEAR(found[r][t][c].item<double>(), sum / (1 + std::exp(-sum)), 1e-5);
      }
    }
  }
  EXPECT_TRUE(tail.equal(x.narrow(1, 6, 3)));
}

TEST(CausalConv, PartsOfARowEqualTheWhole) {
  for (const int64_t kernel : {1, 2, 4}) {
    const at::Tensor x = random_normal({2, 12, 5}, 1), weight = random_normal({5, kernel}, 2);
    at::Tensor whole_tail, tail;
    const at::Tensor whole = causal_conv_silu(x, weight, whole_tail);
    int64_t begin = 0;
    for (const int64_t length : {1, 1, 7, 3}) {
      EXPECT_LT(max_difference(causal_conv_silu(x.narrow(1, begin, length), weight, tail),
                               whole.narrow(1, begin, length)),
                1e-6);
      begin += length;
    }
    EXPECT_TRUE(tail.equal(whole_tail));
  }
}

TEST(Softplus, LargeAndSmall) {
  const at::Tensor x = tensor::arange(9, at::kFloat).sub(4).mul(40);  // -160 ... 160
  const at::Tensor found = tensor::softplus(x);
  for (int64_t i = 0; i < 9; ++i) {
    const double value = x[i].item<double>();
    EXPECT_NEAR(found[i].item<double>(), std::max(value, 0.0) + std::log1p(std::exp(-std::abs(value))), 1e-5);
  }
}

TEST(GatedNorm, EqualsTheFormula) {
  const at::Tensor x = random_normal({3, 2, 4}, 1), gate = random_normal({3, 8}, 2),
                   weight = random_normal({4}, 3);
  for (const Gate kind : {Gate::silu, Gate::sigmoid}) {
    const at::Tensor found = GatedNorm{weight, {.eps = 0.1, .gate = kind}}(x, gate);
    const at::Tensor wide = x.to(at::kDouble), open = gate.to(at::kDouble).view({3, 2, 4});
    const at::Tensor sigmoid = open.neg().exp().add(1).reciprocal();
    const at::Tensor expected = wide.div(wide.square().mean(-1, true).add(0.1).sqrt())
                                    .mul(weight.to(at::kDouble))
                                    .mul(kind == Gate::silu ? open.mul(sigmoid) : sigmoid);
    EXPECT_LT(max_difference(found, expected.reshape({3, 8})), 1e-6);
  }
}

constexpr DeltaSizes kSizes{
    .hidden = 8, .key_heads = 2, .heads = 4, .key_dim = 4, .value_dim = 3, .kernel = 4};

DeltaMemory::Tokens random_tokens(int64_t count) {
  return {.q = random_normal({count, 8}, 1),
          .k = random_normal({count, 8}, 2),
          .v = random_normal({count, 12}, 3),
          .g = random_normal({count, 4}, 4).abs().mul(-0.1),
          .beta = random_normal({count, 4}, 5).sigmoid()};
}

DeltaMemory::Tokens part(const DeltaMemory::Tokens& all, int64_t begin, int64_t count) {
  const auto cut = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
  return {cut(all.q), cut(all.k), cut(all.v), cut(all.g), cut(all.beta)};
}

// The convolutions stored as one and one by one.
class DeltaMemoryTest : public testing::Test {
 protected:
  DeltaMemoryTest() {
    const at::Tensor all = random_normal({28, 1, 4}, 6);
    tiny.tensors["a.conv1d.weight"] = all;
    tiny.tensors["b.q_conv1d.weight"] = all.narrow(0, 0, 8).clone();
    tiny.tensors["b.k_conv1d.weight"] = all.narrow(0, 8, 8).clone();
    tiny.tensors["b.v_conv1d.weight"] = all.narrow(0, 16, 12).clone();
  }
  DeltaMemory open(const std::string& prefix) {
    return {Weights(std::make_shared<const Checkpoint>(tiny.save()), at::kFloat, {}), prefix, kSizes};
  }
  TinyModel tiny;
};

TEST_F(DeltaMemoryTest, EveryRowStartsEmpty) {
  const DeltaMemory memory = open("a.");
  const DeltaMemory::Tokens tokens = random_tokens(70 + 5 + 5);
  const at::Tensor together = memory.mix(tokens, make_batch_context({70, 5, 5}, {}));
  int64_t begin = 0;
  for (const int64_t length : {70, 5, 5}) {
    const at::Tensor alone = memory.mix(part(tokens, begin, length), make_batch_context({length}, {}));
    EXPECT_LT(max_difference(alone, together.narrow(0, begin, length)), 1e-6);
    begin += length;
  }
  const DeltaMemory listed = open("b.");
  EXPECT_TRUE(listed.mix(tokens, make_batch_context({70, 5, 5}, {})).equal(together));
}

TEST_F(DeltaMemoryTest, AStateGoesOn) {
  const DeltaMemory memory = open("a.");
  const DeltaMemory::Tokens tokens = random_tokens(90);
  const at::Tensor whole = memory.mix(tokens, make_batch_context({90}, {}));
  const auto state = memory.make_state();
  EXPECT_EQ(state->bytes(), 0);
  int64_t begin = 0;
  for (const int64_t length : {1, 70, 1, 18}) {
    BatchContext context = make_continuation({.begin = begin, .length = length, .whole = 90}, {});
    context.states = {state.get()};
    EXPECT_LT(
        max_difference(memory.mix(part(tokens, begin, length), context), whole.narrow(0, begin, length)),
        1e-5);
    begin += length;
  }
  // Three tokens of 28 channels, and 4 heads of 4 x 3, whatever the row's length.
  EXPECT_EQ(state->bytes(), 4 * (3 * 28 + 4 * 4 * 3));
}

}  // namespace
}  // namespace gramian
