#include "base/resources.h"

#include <gtest/gtest.h>

#include <vector>

namespace gramian {
namespace {

constexpr int64_t kBlock = int64_t{64} << 20;

// Makes 64 MiB resident for a moment.
int64_t touch_memory() {
  std::vector<char> block(static_cast<size_t>(kBlock), 1);
  int64_t sum = 0;
  for (size_t i = 0; i < block.size(); i += 4096) sum += block[i];
  return sum;
}

TEST(PeakMemory, RisesWithUseAndStays) {
  const int64_t before = peak_rss_bytes();
  EXPECT_GT(before, 0);
  const bool reset = reset_peak_rss();
  const int64_t start = peak_rss_bytes();
  if (reset) {
    EXPECT_LT(start, before + kBlock / 2);
  }
  ASSERT_EQ(touch_memory(), kBlock / 4096);
  const int64_t after = peak_rss_bytes();
  if (reset) {
    EXPECT_GT(after, start + kBlock / 2);
  }
  EXPECT_GE(peak_rss_bytes(), after);
}

TEST(CpuName, OneLineOfText) {
  EXPECT_FALSE(cpu_name().empty());
  EXPECT_EQ(cpu_name().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace gramian
