#include "kernels/peak.h"

#include <gtest/gtest.h>

#include <vector>

namespace gramian {
namespace {

TEST(Peak, EveryVectorLevelHasOneAndTheReferenceNone) {
  EXPECT_EQ(multiply_add_peak(CpuLevel::reference, DType::f32), 0);
  for (int i = static_cast<int>(CpuLevel::avx2); i <= static_cast<int>(detected_cpu_level()); ++i) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const double peak = multiply_add_peak(static_cast<CpuLevel>(i), type);
      EXPECT_GT(peak, 1e8) << i;
      EXPECT_LT(peak, 1e13) << i;
    }
  }
}

TEST(Peak, Int8IsNoSlowerThanFloat) {
  EXPECT_EQ(int8_peak(CpuLevel::reference), 0);
  for (int i = static_cast<int>(CpuLevel::avx2); i <= static_cast<int>(detected_cpu_level()); ++i) {
    const auto level = static_cast<CpuLevel>(i);
    EXPECT_GT(int8_peak(level), 0.5 * multiply_add_peak(level, DType::f32)) << i;
    EXPECT_LT(int8_peak(level), 1e14) << i;
  }
}

TEST(Peak, ReadBandwidthAtEveryLevelAndThreadCount) {
  const std::vector<std::byte> memory(size_t{8} << 20, std::byte{1});
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int i = 0; i <= static_cast<int>(detected_cpu_level()); ++i) {
      const double rate = read_bandwidth(static_cast<CpuLevel>(i), pool, memory, 2);
      EXPECT_GT(rate, 1e7) << i;
      EXPECT_LT(rate, 1e13) << i;
    }
  }
}

}  // namespace
}  // namespace gramian
