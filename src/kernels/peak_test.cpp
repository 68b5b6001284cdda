#include "kernels/peak.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace gramian
