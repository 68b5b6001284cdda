#include "tensor/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>

namespace gramian {
namespace {

// Numbers that differ and have no pattern, in [-1, 1).
at::Tensor noise(at::IntArrayRef shape, double seed) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return tensor::arange(count, at::kDouble)
      .mul(12.9898)
      .add(seed)
      .sin()
      .mul(43758.5453)
      .frac()
      .reshape(shape)
      .to(at::kFloat);
}

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.to(at::kDouble).sub(b.to(at::kDouble)).abs().max().item<double>();
}

TEST(Ops, ThreadsChangeNoBit) {
  const auto same = [](const char* what, int64_t size, const std::function<at::Tensor()>& compute) {
    tensor::set_threads(1);
    const at::Tensor alone = compute();
    for (const int threads : {2, 3, 5, 8}) {
      tensor::set_threads(threads);
      const at::Tensor found = compute();
      EXPECT_TRUE(found.equal(alone)) << what << " of " << size << ", " << threads << " threads";
    }
    tensor::set_threads(1);
  };
  for (const int64_t size : {1, 1000, 32767, 32768, 50001, 65536, 98305, 409600, 1000003}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor x = noise({size}, 0.5).mul(8).to(type);
      same("silu", size, [&] { return tensor::silu(x); });
      same("gelu", size, [&] { return tensor::gelu(x, false); });
      same("gelu tanh", size, [&] { return tensor::gelu(x, true); });
      same("sigmoid", size, [&] { return tensor::sigmoid(x); });
      same("softplus", size, [&] { return tensor::softplus(x); });
      same("tanh", size, [&] { return tensor::tanh(x); });
    }
  }
  for (int64_t rows = 1; rows < 34; ++rows) {
    const at::Tensor x = noise({rows, 512}, 1.5), weight = noise({320, 512}, 2.5);
    same("linear", rows, [&] { return tensor::linear(x, weight, std::nullopt); });
    same("linear bf16", rows,
         [&] { return tensor::linear(x.to(at::kBFloat16), weight.to(at::kBFloat16), std::nullopt); });
  }
}

TEST(Ops, ElementwiseFunctionsAreWhatTheySay) {
  const at::Tensor x = noise({7, 4099}, 0.25).mul(6), wide = x.to(at::kDouble);
  const at::Tensor sigmoid = wide.neg().exp().add(1).reciprocal();
  EXPECT_LT(max_difference(tensor::silu(x), wide.mul(sigmoid)), 1e-6);
  EXPECT_LT(max_difference(tensor::sigmoid(x), sigmoid), 1e-6);
  EXPECT_LT(max_difference(tensor::softplus(x), wide.exp().log1p()), 1e-6);
  EXPECT_LT(max_difference(tensor::tanh(x), wide.tanh()), 1e-6);
  EXPECT_LT(max_difference(tensor::gelu(x, false), wide.mul(wide.div(std::sqrt(2.0)).erf().add(1)).mul(0.5)),
            2e-6);
  EXPECT_EQ(tensor::silu(x).sizes(), x.sizes());
}

TEST(Ops, EveryFileTypeHasATensorTypeOfItsSize) {
  std::set<at::ScalarType> types;
  for (int i = 0; i <= static_cast<int>(DType::f8_e8m0); ++i) {
    const auto dtype = static_cast<DType>(i);
    const at::Tensor made = tensor::empty({3}, tensor::scalar_type(dtype));
    EXPECT_EQ(made.element_size(), static_cast<int64_t>(dtype_bytes(dtype))) << dtype_name(dtype);
    EXPECT_EQ(tensor::dtype_of(made), dtype) << dtype_name(dtype);
    types.insert(tensor::scalar_type(dtype));
  }
  EXPECT_EQ(types.size(), static_cast<size_t>(DType::f8_e8m0) + 1);
}

TEST(Ops, WrapKeepsTheOwnerAlive) {
  auto owner = std::make_shared<std::vector<float>>(6, 2.5f);
  const std::weak_ptr<std::vector<float>> watch = owner;
  {
    const at::Tensor wrapped = tensor::wrap(owner->data(), {2, 3}, at::kFloat, owner);
    EXPECT_EQ(wrapped.const_data_ptr<float>(), owner->data());
    owner.reset();
    EXPECT_FALSE(watch.expired());
    EXPECT_EQ(wrapped.sum().item<double>(), 15);
  }
  EXPECT_TRUE(watch.expired());
}

TEST(Ops, CholeskyFactorsOrRefuses) {
  const at::Tensor x = noise({20, 8}, 1);
  const at::Tensor matrix = x.t().matmul(x);
  const auto lower = tensor::cholesky(matrix);
  ASSERT_TRUE(lower.has_value());
  EXPECT_LT(max_difference(lower->matmul(lower->t()), matrix), 1e-5);
  EXPECT_EQ(lower->triu(1).abs().max().item<double>(), 0);
  EXPECT_LT(max_difference(tensor::cholesky_inverse(*lower).matmul(matrix),
                           tensor::full({8}, 1, at::kFloat).diag()),
            1e-4);
  const at::Tensor b = noise({8, 3}, 2);
  EXPECT_LT(max_difference(lower->matmul(tensor::solve_triangular(*lower, b, false)), b), 1e-5);
  EXPECT_LT(max_difference(lower->t().matmul(tensor::solve_triangular(lower->t(), b, true)), b), 1e-5);

  EXPECT_FALSE(tensor::cholesky(matrix.neg()).has_value());
  EXPECT_FALSE(tensor::cholesky(tensor::zeros({4, 4}, at::kFloat)).has_value());
  at::Tensor broken = matrix.clone();
  broken[5][5].fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(tensor::cholesky(broken).has_value());
}

TEST(Ops, GeluHasTwoForms) {
  const at::Tensor x = noise({100}, 3).mul(4);
  const at::Tensor wide = x.to(at::kDouble);
  EXPECT_LT(max_difference(tensor::gelu(x, false), wide.div(std::sqrt(2.0)).erf().add(1).mul(wide).mul(0.5)),
            1e-6);
  const at::Tensor inner = wide.pow(3).mul(0.044715).add(wide).mul(std::sqrt(2 / M_PI));
  EXPECT_LT(max_difference(tensor::gelu(x, true), inner.tanh().add(1).mul(wide).mul(0.5)), 1e-6);
  EXPECT_LT(max_difference(tensor::silu(x), wide.div(wide.neg().exp().add(1))), 1e-6);
}

// One query at a time over the keys that it may see, in double.
at::Tensor naive_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const tensor::AttentionRule& rule) {
  const int64_t repeats = q.size(1) / k.size(1);
  at::Tensor out = tensor::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, at::kDouble);
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t h = 0; h < q.size(1); ++h) {
      const at::Tensor keys = k[b][h / repeats].to(at::kDouble), values = v[b][h / repeats].to(at::kDouble);
      for (int64_t i = 0; i < q.size(2); ++i) {
        const int64_t first = rule.window > 0 ? std::max<int64_t>(0, i - rule.window + 1) : 0;
        const int64_t count = i + 1 - first;
        at::Tensor scores = keys.narrow(0, first, count).matmul(q[b][h][i].to(at::kDouble)).mul(rule.scale);
        if (rule.softcap > 0) scores = scores.div(rule.softcap).tanh().mul(rule.softcap);
        if (rule.sinks.defined())
          scores = tensor::cat({scores, rule.sinks.narrow(0, h, 1).to(at::kDouble)}, 0);
        const at::Tensor weights = scores.softmax(0).narrow(0, 0, count);
        out[b][h][i].copy_(weights.matmul(values.narrow(0, first, count)));
      }
    }
  }
  return out;
}

TEST(CausalAttention, EqualsTheFormula) {
  for (const auto& [heads, kv_heads] : {std::pair{4, 4}, std::pair{6, 2}, std::pair{3, 1}}) {
    for (const int64_t length : {1, 2, 9, 40}) {
      for (const int64_t window : {0, 1, 3, 8, 9, 10, 1000}) {
        const tensor::AttentionRule rule{.scale = 0.4, .window = window};
        const at::Tensor q = noise({2, heads, length, 8}, 1).mul(2),
                         k = noise({2, kv_heads, length, 8}, 2).mul(2),
                         v = noise({2, kv_heads, length, 8}, 3);
        const at::Tensor found = tensor::causal_attention(q, k, v, rule);
        EXPECT_LT(max_difference(found, naive_attention(q, k, v, rule)), 2e-6)
            << heads << " heads, " << kv_heads << " of keys, length " << length << ", window " << window;
        const tensor::AttentionRule capped{.scale = 0.4, .window = window, .softcap = 1.5};
        const at::Tensor found_capped = tensor::causal_attention(q, k, v, capped);
        EXPECT_LT(max_difference(found_capped, naive_attention(q, k, v, capped)), 2e-6)
            << heads << " heads, " << kv_heads << " of keys, length " << length << ", window " << window;
        // Scores of many times the cap: it must count.
        if (length > 9 && window != 1) {
          EXPECT_GT(max_difference(found, found_capped), 0.1);
        }
      }
    }
  }
}

TEST(CausalAttention, QueriesOfTheLastPositions) {
  constexpr int64_t kWhole = 23;
  const at::Tensor q = noise({2, 6, kWhole, 8}, 1).mul(2), k = noise({2, 2, kWhole, 8}, 2).mul(2),
                   v = noise({2, 2, kWhole, 8}, 3);
  for (const int64_t window : {0, 1, 3, 8, 22, 23, 100}) {
    for (const double softcap : {0.0, 1.5}) {
      const tensor::AttentionRule rule{.scale = 0.4, .window = window, .softcap = softcap};
      const at::Tensor whole = naive_attention(q, k, v, rule);
      for (const int64_t length : {1, 2, 7, 22, 23}) {
        const auto last = [&](const at::Tensor& x, int64_t count) {
          return x.narrow(2, kWhole - count, count);
        };
        EXPECT_LT(max_difference(tensor::causal_attention(last(q, length), k, v, rule), last(whole, length)),
                  2e-6)
            << length << " queries, window " << window << ", softcap " << softcap;
        // Keys that no query sees may be missing.
        const int64_t seen = window > 0 ? std::min(kWhole, length + window - 1) : kWhole;
        EXPECT_LT(
            max_difference(tensor::causal_attention(last(q, length), last(k, seen), last(v, seen), rule),
                           last(whole, length)),
            2e-6)
            << length << " queries, window " << window << ", softcap " << softcap;
      }
    }
  }
}

TEST(CausalAttention, SinksTakeTheirShare) {
  const at::Tensor q = noise({2, 6, 12, 8}, 1).mul(2), k = noise({2, 2, 12, 8}, 2).mul(2),
                   v = noise({2, 2, 12, 8}, 3), sinks = noise({6}, 4);
  for (const int64_t window : {0, 3}) {
    for (const double softcap : {0.0, 1.5}) {
      tensor::AttentionRule rule{.scale = 0.4, .window = window, .softcap = softcap, .sinks = sinks};
      const at::Tensor whole = naive_attention(q, k, v, rule);
      for (const int64_t length : {1, 5, 12}) {
        const at::Tensor last = q.narrow(2, 12 - length, length);
        EXPECT_LT(
            max_difference(tensor::causal_attention(last, k, v, rule), whole.narrow(2, 12 - length, length)),
            2e-6)
            << length << " queries, window " << window << ", softcap " << softcap;
      }
      rule.sinks.reset();
      EXPECT_GT(max_difference(tensor::causal_attention(q, k, v, rule), whole), 0.1);
    }
  }
}

TEST(CausalAttention, ValuesMayBeNarrowerThanKeys) {
  const at::Tensor q = noise({2, 6, 12, 8}, 1).mul(2), k = noise({2, 2, 12, 8}, 2).mul(2),
                   v = noise({2, 2, 12, 5}, 3);
  for (const int64_t window : {0, 3}) {
    for (const double softcap : {0.0, 1.5}) {
      const tensor::AttentionRule rule{.scale = 0.4, .window = window, .softcap = softcap};
      const at::Tensor whole = naive_attention(q, k, v, rule);
      for (const int64_t length : {1, 5, 12}) {
        const at::Tensor found = tensor::causal_attention(q.narrow(2, 12 - length, length), k, v, rule);
        EXPECT_LT(max_difference(found, whole.narrow(2, 12 - length, length)), 2e-6) << length << " queries";
      }
    }
  }
}

TEST(CausalAttention, TakesTransposedViewsAndHalfTypes) {
  // As a model lays them out: [B, L, heads, d] seen as [B, heads, L, d].
  const at::Tensor q = noise({2, 9, 4, 8}, 1).transpose(1, 2), k = noise({2, 9, 2, 8}, 2).transpose(1, 2),
                   v = noise({2, 9, 2, 8}, 3).transpose(1, 2);
  for (const tensor::AttentionRule& rule :
       {tensor::AttentionRule{.scale = 0.4}, tensor::AttentionRule{.scale = 0.4, .window = 3},
        tensor::AttentionRule{.scale = 0.4, .window = 3, .softcap = 2}}) {
    const at::Tensor expected = naive_attention(q, k, v, rule);
    EXPECT_LT(max_difference(tensor::causal_attention(q, k, v, rule), expected), 2e-6);
    for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
      const at::Tensor found = tensor::causal_attention(q.to(type), k.to(type), v.to(type), rule);
      EXPECT_EQ(found.scalar_type(), type);
      EXPECT_LT(max_difference(found, expected), 0.02);
    }
  }
}

TEST(InferenceScope, EndsWithTheObject) {
  {
    const tensor::InferenceScope scope;
    EXPECT_TRUE(tensor::zeros({1}, at::kFloat).is_inference());
  }
  EXPECT_FALSE(tensor::zeros({1}, at::kFloat).is_inference());
}

// Two OpenMP runtimes in a process oversubscribe the cores and may crash: the wheel's own must be alone.
TEST(OpenMp, OneRuntimeIsMapped) {
  tensor::set_threads(2);
  // Large enough to start the runtime's threads.
  ASSERT_TRUE(std::isfinite(noise({600, 600}, 1).matmul(noise({600, 600}, 2)).sum().item<double>()));
  std::set<std::string> runtimes;
  std::ifstream maps("/proc/self/maps");
  if (!maps) GTEST_SKIP() << "no /proc here";
  for (std::string line; std::getline(maps, line);) {
    const size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const std::string path = line.substr(slash);
    const std::string file = path.substr(path.rfind('/') + 1);
    for (const char* runtime : {"libgomp", "libomp", "libiomp"}) {
      if (file.starts_with(runtime)) runtimes.insert(path);
    }
  }
  EXPECT_EQ(runtimes.size(), 1u) << testing::PrintToString(runtimes);
}

TEST(LibTorch, SaysItsVersion) {
  int major = 0, minor = 0;
  EXPECT_EQ(std::sscanf(tensor::libtorch_version().c_str(), "%d.%d", &major, &minor), 2)
      << tensor::libtorch_version();
  EXPECT_GE(major, 2);
}

}  // namespace
}  // namespace gramian
