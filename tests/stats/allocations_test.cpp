// What adding and merging allocate: the program's operator new and LibTorch's allocator are watched.
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "kernels/cpu_level.h"
#include "stats/hessian.h"
#include "stats/imatrix.h"
#include "stats/local_hessian.h"
#include "tensor/ops.h"

// Bytes that this program took from the heap so far.
static std::atomic<int64_t> taken = 0;

// Not inlined: g++ would take the new and delete below for a mismatched pair.
[[gnu::noinline]] static void* take(std::size_t bytes, std::size_t alignment) {
  taken += static_cast<int64_t>(bytes);
  const std::size_t whole = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, whole)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes) { return take(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return take(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] static void give_back(void* memory) { std::free(memory); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }

namespace gramian {
namespace {

// Bytes of tensors on this thread: made so far, and alive beside those that were there before.
struct TensorBytes final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) made += bytes;
    alive += bytes;
    most = std::max(most, alive);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t made = 0;
  int64_t alive = 0, most = 0;
};

class Allocations : public testing::Test {
 protected:
  Allocations() {
    tensor::set_threads(1);
    if (cpu_level() < CpuLevel::avx2) skip_ = true;
  }
  void SetUp() override {
    if (skip_) GTEST_SKIP() << "LibTorch's form allocates";
  }
  std::shared_ptr<TensorBytes> watch_ = std::make_shared<TensorBytes>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, watch_};
  ThreadPool pool_{2};
  bool skip_ = false;
};

at::Tensor rows_of(int64_t tokens, int64_t columns, at::ScalarType type) {
  return tensor::arange(tokens * columns, at::kFloat).sin_().reshape({tokens, columns}).to(type);
}

constexpr int64_t kFew = 4096;  // bytes

// After the first batch has made the sum and the buffers, a batch allocates next to nothing, however long it is.
template <class Accumulator>
void expect_bounded(Accumulator& accumulator, int64_t columns, at::ScalarType type, int64_t sum_bytes,
                    ThreadPool& pool, const TensorBytes& watch) {
  const at::Tensor small = rows_of(512, columns, type), large = rows_of(4096, columns, type);
  const int64_t made = watch.made;
  accumulator.add(0, small, &pool);
  EXPECT_GE(watch.made - made, sum_bytes) << "the watch must see the sum";
  for (const at::Tensor& x : {small, large}) {
    const int64_t tensors = watch.made, heap = taken;
    accumulator.add(0, x, &pool);
    EXPECT_EQ(watch.made, tensors);
    EXPECT_LT(taken - heap, kFew);
  }
}

TEST_F(Allocations, AnAdditionAllocatesNothingThatGrows) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t columns : {64, 700}) {
      HessianAccumulator hessian(columns, 1);
      expect_bounded(hessian, columns, type, 4 * columns * columns, pool_, *watch_);
      LocalHessianAccumulator local(columns, 1);
      expect_bounded(local, columns, type, 4 * columns * 16, pool_, *watch_);
      ImatrixAccumulator imatrix(columns, 1);
      expect_bounded(imatrix, columns, type, 8 * columns, pool_, *watch_);
    }
  }
}

// A mask of bool costs nothing, of integers a byte a token; copies of rounded rows are bounded. Tensors that say where a piece lies
// come and go.
TEST_F(Allocations, MasksAndStagingStayBounded) {
  const int64_t columns = 1024, tokens = 16384;
  const at::Tensor x = rows_of(tokens, columns, at::kFloat);
  const at::Tensor keep = tensor::arange(tokens, at::kLong).remainder(3).ne(0);
  HessianAccumulator masked(columns, 1);
  masked.add(0, x, keep, &pool_);
  for (const at::Tensor& mask : {keep, keep.to(at::kLong)}) {
    const int64_t made = watch_->made, heap = taken;
    masked.add(0, x, mask, &pool_);
    EXPECT_LE(watch_->made - made, mask.scalar_type() == at::kBool ? 0 : tokens + 64);
    EXPECT_LT(taken - heap, 8 * kFew);
  }

  HessianAccumulator staged(columns, 1, {.staging = DType::bf16});
  staged.add(0, x, &pool_);
  watch_->most = watch_->alive = 0;
  staged.add(0, x, &pool_);
  EXPECT_GT(watch_->most, 0);
  EXPECT_LE(watch_->most, 5 << 20);
}

TEST_F(Allocations, AMergeHoldsTheResultAndOnePartial) {
  const int64_t columns = 512, bytes = 4 * columns * columns;
  const int lanes = 3;
  HessianAccumulator accumulator(columns, lanes);
  const at::Tensor x = rows_of(64, columns, at::kFloat);
  watch_->alive = watch_->most = 0;
  for (int lane = 0; lane < lanes; ++lane) accumulator.add(lane, x);
  EXPECT_EQ(watch_->alive, lanes * bytes);
  int64_t made = watch_->made;
  accumulator.merge();
  EXPECT_EQ(watch_->made, made) << "the first partial becomes the result";
  EXPECT_EQ(watch_->alive, bytes);

  // The second time the earlier result is there too until the new one is complete.
  accumulator.add(2, x);
  made = watch_->made;
  accumulator.merge();
  EXPECT_EQ(watch_->made, made);
  EXPECT_EQ(watch_->alive, bytes);
}

}  // namespace
}  // namespace gramian
