#include "models/kv_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::random_normal;

constexpr int64_t kRows = 2, kHeads = 3, kDim = 4;

// Appends parts of these lengths; after each, what comes back must be the last positions, `kept(end, length)` of them.
template <class Kept>
void expect_kept(KvState& state, const std::vector<int64_t>& lengths, at::ScalarType type, const Kept& kept) {
  int64_t whole = 0;
  for (const int64_t length : lengths) whole += length;
  const at::Tensor k = random_normal({kRows, kHeads, whole, kDim}, 1).to(type);
  const at::Tensor v = random_normal({kRows, kHeads, whole, kDim}, 2).to(type);
  int64_t end = 0;
  for (const int64_t length : lengths) {
    const auto [keys, values] = state.append(k.narrow(2, end, length), v.narrow(2, end, length));
    end += length;
    const int64_t count = kept(end, length);
    ASSERT_EQ(keys.size(2), count) << "after " << end;
    EXPECT_EQ(keys.scalar_type(), type);
    EXPECT_TRUE(keys.equal(k.narrow(2, end - count, count))) << "after " << end;
    EXPECT_TRUE(values.equal(v.narrow(2, end - count, count))) << "after " << end;
  }
}

constexpr int64_t kTokenBytes = 2 * kRows * kHeads * kDim * 4;  // keys and values, f32

TEST(KvState, KeepsEverythingWithoutAWindow) {
  KvState state(0, 0);
  EXPECT_EQ(state.bytes(), 0);
  expect_kept(state, {5, 1, 1, 1, 30, 1, 2}, at::kFloat, [](int64_t end, int64_t) { return end; });
  EXPECT_GE(state.bytes(), 41 * kTokenBytes);
  EXPECT_LE(state.bytes(), 82 * kTokenBytes);
}

TEST(KvState, NeverHasRoomForMoreThanTheRowWillHold) {
  KvState state(0, 41);
  expect_kept(state, {5, 30, 1, 1, 1, 1, 1, 1}, at::kBFloat16, [](int64_t end, int64_t) { return end; });
  EXPECT_EQ(state.bytes(), 41 * kTokenBytes / 2);
}

TEST(KvState, AWindowKeepsWhatTheNextTokenSees) {
  for (const int64_t window : {1, 2, 7}) {
    KvState state(window, 0);
    std::vector<int64_t> lengths{3, 9, 1, 4};
    lengths.insert(lengths.end(), 200, 1);
    expect_kept(state, lengths, at::kFloat,
                [&](int64_t end, int64_t length) { return std::min(end, window - 1 + length); });
    // The room of the longest part, not of 217 tokens.
    EXPECT_LE(state.bytes(), 2 * (window + 9) * kTokenBytes);
  }
}

}  // namespace
}  // namespace gramian
