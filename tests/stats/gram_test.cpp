// The two forms of each sum against float64 and against each other.
#include "stats/gram.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu_level.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

class GramTest : public testing::Test {
 protected:
  GramTest() { tensor::set_threads(1); }
};

constexpr double kRounding = 1e-6;  // of a few hundred fp32 sums
constexpr GramForm kForms[] = {GramForm::kernels, GramForm::libtorch};

at::Tensor random_rows(int64_t tokens, int64_t columns, at::ScalarType type, float mean = 0) {
  std::mt19937 random(static_cast<uint32_t>(tokens + columns));
  std::normal_distribution<float> normal(mean, 1);
  at::Tensor x = tensor::empty({tokens, columns}, at::kFloat);
  auto* data = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) data[i] = normal(random);
  return x.to(type);
}

at::Tensor exact(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  return wide.t().matmul(wide);
}

TokenBatch all_of(const at::Tensor& x) { return {x, {}, x.size(1)}; }
// As without settings: bf16 as bf16 where the CPU multiplies it.
Accumulation plain(const at::Tensor& x) {
  return {.bf16_products = x.scalar_type() == at::kBFloat16 && multiplies_bf16(x)};
}

at::Tensor gram(const at::Tensor& x, GramForm form, ThreadPool* pool = nullptr) {
  at::Tensor sum = tensor::zeros({x.size(1), x.size(1)}, at::kFloat);
  GramWorkspaces workspaces;
  add_gram(sum, all_of(x), plain(x), workspaces, pool, form);
  finish_gram(sum, 1, form);
  return sum;
}

// Root mean square of ΔH_ij / √(H_ii H_jj).
double error(const at::Tensor& h, const at::Tensor& expected) {
  const at::Tensor root = expected.diagonal().sqrt();
  return h.to(at::kDouble)
      .sub(expected)
      .div(root.unsqueeze(0))
      .div(root.unsqueeze(1))
      .square()
      .mean()
      .sqrt()
      .item<double>();
}

TEST_F(GramTest, BothFormsMatchFloat64) {
  for (const GramForm form : kForms) {
    for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
      for (const int64_t columns : {1, 2, 47, 130, 600}) {
        for (const int64_t tokens : {1, 3, 300}) {
          const at::Tensor x = random_rows(tokens, columns, type), h = gram(x, form);
          EXPECT_LT(error(h, exact(x)), kRounding) << columns << " " << tokens;
          EXPECT_TRUE(h.equal(h.t()));
        }
      }
      const at::Tensor wide = random_rows(2100, 60, type);
      const at::Tensor strided = wide.slice(1, 0, 60, 2), rows = wide.slice(0, 0, 2100, 3).slice(1, 5, 25);
      EXPECT_LT(error(gram(strided, form), exact(strided)), kRounding);
      EXPECT_LT(error(gram(rows, form), exact(rows)), kRounding);
    }
  }
}

TEST_F(GramTest, FinishingScalesAndMirrorsInBothForms) {
  for (const int64_t columns : {1, 31, 32, 33, 600}) {
    const at::Tensor lower = random_rows(columns, columns, at::kFloat);
    const at::Tensor expected = lower.tril().add(lower.tril(-1).t()).mul(0.37f);
    for (const GramForm form : kForms) {
      const at::Tensor sum = lower.clone();
      finish_gram(sum, 0.37f, form);
      EXPECT_TRUE(sum.equal(expected)) << columns;
    }
  }
}

TEST_F(GramTest, TheFirstNonFiniteRowIsFoundInBothForms) {
  const double infinity = std::numeric_limits<double>::infinity();
  ThreadPool pool(3);
  for (const GramForm form : kForms) {
    for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
      const at::Tensor x = random_rows(6000, 100, type);
      EXPECT_FALSE(first_non_finite(all_of(x), &pool, form));
      for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
        const at::Tensor damaged = x.clone();
        damaged.select(0, 5999).select(0, 3).fill_(bad);
        EXPECT_EQ(first_non_finite(all_of(damaged), nullptr, form), 5999);
        damaged.select(0, 4321).select(0, 98).fill_(bad);
        EXPECT_EQ(first_non_finite(all_of(damaged), &pool, form), 4321);
        EXPECT_EQ(first_non_finite(all_of(damaged.slice(1, 0, 100, 7)), &pool, form),
                  4321);  // columns 0, 7, .. 98
      }
    }
    EXPECT_FALSE(first_non_finite(all_of(tensor::full({4, 5}, 3e38, at::kFloat)), nullptr, form))
        << "its sum overflows";
  }
}

TEST_F(GramTest, ThreadsChangeNoBits) {
  ThreadPool one(1), two(2), five(5);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random_rows(700, 321, type), h = gram(x, GramForm::kernels);
    for (ThreadPool* pool : {&one, &two, &five}) EXPECT_TRUE(gram(x, GramForm::kernels, pool).equal(h));
  }
}

TEST_F(GramTest, DiagonalBlocksMatchFloat64) {
  ThreadPool pool(3);
  for (const GramForm form : kForms) {
    for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
      for (const int64_t columns : {1, 16, 17, 96, 250}) {
        const at::Tensor x = random_rows(300, columns, type);
        const int64_t blocks = (columns + 15) / 16;
        const at::Tensor sum = tensor::zeros({blocks, 16, 16}, at::kFloat), single = sum.clone();
        GramWorkspaces workspaces;
        add_diagonal_blocks(sum, all_of(x), plain(x), workspaces, &pool, form);
        add_diagonal_blocks(single, all_of(x), plain(x), workspaces, nullptr, form);
        EXPECT_TRUE(sum.equal(single)) << "threads change no bits";
        const at::Tensor whole = exact(x);
        at::Tensor expected = tensor::zeros({16 * blocks, 16 * blocks}, at::kDouble);
        expected.slice(0, 0, columns).slice(1, 0, columns).copy_(whole);
        for (int64_t b = 0; b < blocks; ++b) {
          const at::Tensor block = expected.slice(0, 16 * b, 16 * b + 16).slice(1, 16 * b, 16 * b + 16);
          EXPECT_LT(sum.select(0, b).to(at::kDouble).sub(block).abs().max().item<double>(), 300 * 2e-6)
              << columns << " block " << b;
        }
      }
    }
  }
}

TEST_F(GramTest, ColumnSquaresAreExactToFloat64) {
  ThreadPool pool(3);
  for (const GramForm form : kForms) {
    for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
      for (const int64_t columns : {1, 7, 513}) {
        const at::Tensor x = random_rows(700, columns, type);
        const at::Tensor sum = tensor::zeros({columns}, at::kDouble);
        add_column_squares(sum, all_of(x), &pool, form);
        const at::Tensor expected = x.to(at::kFloat).to(at::kDouble).square().sum(0);
        EXPECT_LT(sum.sub(expected).abs().div(expected).max().item<double>(), 1e-13) << columns;
      }
    }
  }
}

// Gaussian columns, and columns whose mean is large; one batch and many.
TEST_F(GramTest, KernelsAreAsExactAsLibTorch) {
  for (const float mean : {0.0f, 1.0f, 30.0f}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const int batches : {1, 4}) {
        at::Tensor expected = tensor::zeros({320, 320}, at::kDouble), libtorch = expected.to(at::kFloat);
        const at::Tensor kernels = libtorch.clone();
        GramWorkspaces workspaces;
        for (int i = 0; i < batches; ++i) {
          const at::Tensor x = random_rows(1024 + i, 320, type, mean), wide = x.to(at::kFloat);
          expected.add_(exact(x));
          libtorch.addmm_(wide.t(), wide);
          add_gram(kernels, all_of(x), plain(x), workspaces, nullptr, GramForm::kernels);
        }
        finish_gram(kernels, 1, GramForm::kernels);
        EXPECT_LT(error(kernels, expected), error(libtorch, expected) * (type == at::kFloat ? 1.1 : 3))
            << "mean " << mean << ", " << batches << " batches";
      }
    }
  }
}

}  // namespace
}  // namespace gramian
