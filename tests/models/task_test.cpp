// The pausing task: nesting, order of pauses, exceptions, and every allowed form of co_await. CMake builds this file at -O0
// and at -O2, because g++ 12 has miscompiled coroutines at either.
#include "models/task.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tensor/ops.h"

namespace gramian {
namespace {

// Multiplies by a constant.
class Scale final : public LinearOp {
 public:
  explicit Scale(double factor) : factor_(factor) {}
  at::Tensor forward(const at::Tensor& x) const override { return x.mul(factor_); }

 private:
  double factor_;
};

Linear scale(const std::string& name, double factor) {
  return {name, 2, 2, false, std::make_shared<Scale>(factor)};
}

at::Tensor ones() { return tensor::full({1, 2}, 1.0, at::kFloat); }

Task<at::Tensor> inner(at::Tensor x, Linear& a) {
  std::vector<at::Tensor> y = co_await linears(std::move(x), a);
  co_return std::move(y[0]);
}

Task<int64_t> count(at::Tensor x) { co_return x.numel(); }

// Declaration, assignment, co_return and a loop body; arguments moved, named and made by plain calls.
Task<at::Tensor> outer(at::Tensor x, Linear& a, Linear& b, int repeats) {
  std::vector<at::Tensor> both = co_await linears(std::move(x), a, b);
  at::Tensor sum = both[0].add(both[1]);
  for (int i = 0; i < repeats; ++i) {
    sum = co_await inner(sum.add(0), a);
  }
  int64_t entries = co_await count(sum);
  sum = sum.add(static_cast<double>(entries));
  co_return co_await inner(std::move(sum), b);
}

Task<at::Tensor> throws_after_pause(at::Tensor x, Linear& a) {
  std::vector<at::Tensor> y = co_await linears(std::move(x), a);
  if (y.size() == 1) throw std::runtime_error("deep");
  co_return std::move(y[0]);
}

Task<at::Tensor> passes_on(at::Tensor x, Linear& a) {
  at::Tensor y = co_await throws_after_pause(std::move(x), a);
  co_return y;
}

TEST(Task, PausesInOrderAndReturnsTheValue) {
  Linear a = scale("a", 2), b = scale("b", 3);
  Execution execution(outer(ones(), a, b, 2));
  std::vector<std::string> pauses;
  while (Pause* pause = execution.advance()) {
    std::string names;
    for (const Linear* module : pause->modules) names += module->name;
    pauses.push_back(names);
    EXPECT_TRUE(pause->input.defined());
    multiply(*pause);
    EXPECT_FALSE(pause->input.defined());
  }
  EXPECT_EQ(pauses, (std::vector<std::string>{"ab", "a", "a", "b"}));
  // ((2 + 3) · 2 · 2 + 2) · 3
  EXPECT_EQ(execution.result()[0][0].item<float>(), 66.0f);
}

TEST(Task, AModuleExchangedDuringThePauseIsTheOneThatMultiplies) {
  Linear a = scale("a", 2), b = scale("b", 3);
  Execution execution(inner(ones(), a));
  Pause* pause = execution.advance();
  ASSERT_NE(pause, nullptr);
  a.op = std::make_shared<Scale>(10);
  EXPECT_EQ(multiply(*pause), 1);
  EXPECT_EQ(execution.advance(), nullptr);
  EXPECT_EQ(execution.result()[0][0].item<float>(), 10.0f);
}

TEST(Task, ManySuspendedBatchesKeepTheirOwnState) {
  Linear a = scale("a", 2), b = scale("b", 3);
  std::vector<std::unique_ptr<Execution>> batches;
  for (int i = 0; i < 17; ++i) batches.push_back(std::make_unique<Execution>(outer(ones().mul(i), a, b, 3)));
  for (bool open = true; open;) {
    open = false;
    for (auto& batch : batches) {
      Pause* pause = batch->advance();
      if (pause == nullptr) continue;
      multiply(*pause);
      open = true;
    }
  }
  for (int i = 0; i < 17; ++i) {
    const float expected = (5.0f * static_cast<float>(i) * 8.0f + 2.0f) * 3.0f;
    EXPECT_EQ(batches[static_cast<size_t>(i)]->result()[0][1].item<float>(), expected);
  }
}

TEST(Task, AnExceptionTravelsThroughNestedTasks) {
  Linear a = scale("a", 2);
  Execution execution(passes_on(ones(), a));
  Pause* pause = execution.advance();
  ASSERT_NE(pause, nullptr);
  multiply(*pause);
  EXPECT_THROW(execution.advance(), std::runtime_error);
}

TEST(Task, GoingOnWithoutProductsIsABug) {
  Linear a = scale("a", 2);
  Execution execution(inner(ones(), a));
  ASSERT_NE(execution.advance(), nullptr);
  EXPECT_THROW(execution.advance(), Error);
}

TEST(Task, AnAbandonedExecutionFreesItsFrames) {
  Linear a = scale("a", 2), b = scale("b", 3);
  at::Tensor x = ones();
  {
    Execution execution(outer(x, a, b, 1));
    ASSERT_NE(execution.advance(), nullptr);
    EXPECT_GT(x.use_count(), 1);
  }
  EXPECT_EQ(x.use_count(), 1);
}

}  // namespace
}  // namespace gramian
