// The two forms of a sum of xᵀx against float64 and against each other, and what an addition allocates.
#include "stats/gram.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "kernels/cpu_level.h"
#include "stats/hessian.h"
#include "tensor/ops.h"

// Bytes that this program took from the heap so far.
static std::atomic<int64_t> taken = 0;

static void* take(std::size_t bytes, std::size_t alignment) {
  taken += static_cast<int64_t>(bytes);
  const std::size_t whole = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, whole)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes) { return take(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return take(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

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

at::Tensor gram(const at::Tensor& x, GramForm form, ThreadPool* pool = nullptr) {
  at::Tensor sum = tensor::zeros({x.size(1), x.size(1)}, at::kFloat);
  GramWorkspaces workspaces;
  add_gram(sum, x, workspaces, pool, form);
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
      EXPECT_FALSE(first_non_finite(x, &pool, form));
      for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
        const at::Tensor damaged = x.clone();
        damaged.select(0, 5999).select(0, 3).fill_(bad);
        EXPECT_EQ(first_non_finite(damaged, nullptr, form), 5999);
        damaged.select(0, 4321).select(0, 98).fill_(bad);
        EXPECT_EQ(first_non_finite(damaged, &pool, form), 4321);
        EXPECT_EQ(first_non_finite(damaged.slice(1, 0, 100, 7), &pool, form), 4321);  // columns 0, 7, .. 98
      }
    }
    EXPECT_FALSE(first_non_finite(tensor::full({4, 5}, 3e38, at::kFloat), nullptr, form))
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
          add_gram(kernels, x, workspaces, nullptr, GramForm::kernels);
        }
        finish_gram(kernels, 1, GramForm::kernels);
        EXPECT_LT(error(kernels, expected), error(libtorch, expected) * (type == at::kFloat ? 1.1 : 3))
            << "mean " << mean << ", " << batches << " batches";
      }
    }
  }
}

// Bytes of tensors made on this thread.
struct TensorBytes final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) made += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t made = 0;
};

// After the first batch has made the sum and the buffers, a batch allocates next to nothing, however long it is.
TEST_F(GramTest, AnAdditionAllocatesNothingThatGrows) {
  if (cpu_level() < CpuLevel::avx2) GTEST_SKIP() << "LibTorch's form allocates";
  const auto watch = std::make_shared<TensorBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, watch);
  ThreadPool pool(2);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t columns : {64, 700}) {
      const at::Tensor small = random_rows(512, columns, type), large = random_rows(4096, columns, type);
      HessianAccumulator accumulator(columns, 1);
      const int64_t made = watch->made;
      accumulator.add(0, small, &pool);
      EXPECT_GE(watch->made - made, 4 * columns * columns) << "the watch must see the sum";
      for (const at::Tensor& x : {small, large}) {
        const int64_t tensors = watch->made, heap = taken;
        accumulator.add(0, x, &pool);
        EXPECT_EQ(watch->made, tensors);
        EXPECT_LT(taken - heap, 4096);
      }
    }
  }
}

}  // namespace
}  // namespace gramian
