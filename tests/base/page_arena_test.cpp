#include "base/page_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/resources.h"

namespace gramian {
namespace {

TEST(PageArena, BlocksAreApartZeroedAndAligned) {
  PageArena arena;
  std::vector<std::shared_ptr<std::byte[]>> blocks;
  for (int64_t size : {0, 1, 63, 64, 65, 1 << 20, 100}) blocks.push_back(arena.take(size));
  const std::vector<int64_t> sizes = {0, 1, 63, 64, 65, 1 << 20, 100};
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks[i].get()) % 64, 0u);
    for (int64_t b = 0; b < sizes[i]; ++b) ASSERT_EQ(blocks[i][b], std::byte{0});
    std::memset(blocks[i].get(), static_cast<int>(i) + 1, static_cast<size_t>(sizes[i]));
  }
  for (size_t i = 0; i < blocks.size(); ++i)
    for (int64_t b = 0; b < sizes[i]; ++b) ASSERT_EQ(blocks[i][b], std::byte(i + 1));
}

TEST(PageArena, BlocksOutliveTheArenaAndTheNextChunk) {
  std::shared_ptr<std::byte[]> first, large;
  {
    PageArena arena;
    first = arena.take(10);
    first[9] = std::byte{7};
    large = arena.take(int64_t{200} << 20);  // does not fit the first chunk
    large[(200 << 20) - 1] = std::byte{8};
  }
  EXPECT_EQ(first[9], std::byte{7});
  EXPECT_EQ(large[(200 << 20) - 1], std::byte{8});
}

TEST(PageArena, GivesBackWhatNobodyHolds) {
  const int64_t before = resident_bytes();
  constexpr int64_t kSize = int64_t{96} << 20;
  {
    PageArena arena;
    const auto block = arena.take(kSize);
    std::memset(block.get(), 1, static_cast<size_t>(kSize));
    EXPECT_GT(resident_bytes(), before + kSize / 2);
  }
  EXPECT_LT(resident_bytes(), before + kSize / 2);
}

}  // namespace
}  // namespace gramian
