#include "tensor/activations.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "base/error.h"
#include "support/files.h"
#include "tensor/ops.h"

namespace gramian::tensor {
namespace {

using testing_support::TemporaryFolder;

TEST(ActivationStore, CountsWhatAScopeMakesAndForgetsWhatIsFreed) {
  ActivationStore store(2, {});
  at::Tensor outside = zeros({4096}, at::kFloat);
  at::Tensor kept;
  {
    const ActivationStore::Scope scope(store, 1);
    kept = zeros({10000}, at::kFloat);
    const at::Tensor dies = zeros({100000}, at::kFloat);
    const at::Tensor small = zeros({10}, at::kFloat);
    EXPECT_EQ(store.live_bytes(1), 10 * 4096 + 98 * 4096);
  }
  EXPECT_EQ(store.live_bytes(0), 0);
  EXPECT_EQ(store.live_bytes(1), 10 * 4096);
  EXPECT_EQ(store.peak_bytes(), 108 * 4096);
  store.reset_peak();
  EXPECT_EQ(store.peak_bytes(), 10 * 4096);
  std::thread([&] { kept.reset(); }).join();
  EXPECT_EQ(store.live_bytes(1), 0);
}

TEST(ActivationStore, ParkedTensorsComeBackAtTheirAddresses) {
  const TemporaryFolder folder;
  ActivationStore store(3, folder.path());
  std::vector<at::Tensor> tensors, copies;
  for (size_t owner = 0; owner < 3; ++owner) {
    const ActivationStore::Scope scope(store, owner);
    tensors.push_back(arange(5000 + static_cast<int64_t>(owner), at::kFloat).add_(owner));
  }
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  const at::Tensor view = tensors[1].slice(0, 100, 200);
  const void* address = tensors[1].const_data_ptr();
  for (int round = 0; round < 3; ++round) {
    const int64_t before = store.parked_bytes();
    for (size_t owner = 0; owner < 3; ++owner) store.park(owner);
    EXPECT_GT(store.parked_bytes(), before);
    store.reset_peak();
    EXPECT_EQ(store.peak_bytes(), 0);
    // The pages are gone: the memory reads as zero.
    EXPECT_EQ(tensors[2].sum().item<float>(), 0);
    for (size_t owner = 0; owner < 3; ++owner) store.fetch(owner);
    for (size_t owner = 0; owner < 3; ++owner) EXPECT_TRUE(tensors[owner].equal(copies[owner]));
    EXPECT_EQ(tensors[1].const_data_ptr(), address);
    EXPECT_TRUE(view.equal(copies[1].slice(0, 100, 200)));
    // What is changed after it came back is parked in its new form.
    tensors[0].add_(1);
    copies[0].add_(1);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ActivationStore, AParkedTensorMayBeFreedAndItsPlaceInTheFileUsedAgain) {
  const TemporaryFolder folder;
  ActivationStore store(1, folder.path());
  for (int round = 0; round < 4; ++round) {
    at::Tensor tensor;
    {
      const ActivationStore::Scope scope(store, 0);
      tensor = full({3000}, round, at::kFloat);
    }
    store.park(0);
    if (round % 2 == 0) {
      tensor.reset();
      EXPECT_EQ(store.live_bytes(0), 0);
      continue;
    }
    store.fetch(0);
    EXPECT_EQ(tensor.sum().item<float>(), 3000.0f * static_cast<float>(round));
  }
  EXPECT_EQ(store.live_bytes(0), 0);
}

TEST(ActivationStore, TensorsMayOutliveTheStore) {
  at::Tensor tensor;
  {
    ActivationStore store(1, {});
    const ActivationStore::Scope scope(store, 0);
    tensor = full({5000}, 3, at::kFloat);
  }
  EXPECT_EQ(tensor.sum().item<float>(), 15000);
}

TEST(ActivationStore, ScopesNestAndAreThreadsOwn) {
  ActivationStore a(1, {}), b(1, {});
  std::vector<at::Tensor> keep;
  const ActivationStore::Scope outer(a, 0);
  {
    const ActivationStore::Scope inner(b, 0);
    keep.push_back(zeros({5000}, at::kFloat));
  }
  keep.push_back(zeros({5000}, at::kFloat));
  std::thread([&] { keep.push_back(zeros({50000}, at::kFloat)); }).join();
  EXPECT_EQ(a.live_bytes(0), 5 * 4096);
  EXPECT_EQ(b.live_bytes(0), 5 * 4096);
}

TEST(ActivationStore, AFolderThatCannotBeWrittenIsNamed) {
  ActivationStore store(1, "/nonexistent/scratch");
  at::Tensor tensor;
  {
    const ActivationStore::Scope scope(store, 0);
    tensor = zeros({5000}, at::kFloat);
  }
  try {
    store.park(0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_NE(std::string(error.what()).find("/nonexistent/scratch"), std::string::npos);
  }
  EXPECT_EQ(tensor.sum().item<float>(), 0);
}

}  // namespace
}  // namespace gramian::tensor
