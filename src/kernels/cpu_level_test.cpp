#include "kernels/cpu_level.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace gramian {
namespace {

TEST(CpuLevel, EveryLevelUpToTheDetectedOneCanBeForced) {
  const CpuLevel detected = detected_cpu_level();
  for (int i = 0; i <= static_cast<int>(CpuLevel::avx512_bf16); ++i) {
    const auto level = static_cast<CpuLevel>(i);
    const std::string forced(name(level));
    if (level <= detected) {
      EXPECT_EQ(choose_cpu_level(forced), level) << forced;
    } else {
      EXPECT_THROW(choose_cpu_level(forced), Error) << forced;
    }
  }
  EXPECT_EQ(choose_cpu_level(""), detected);
  EXPECT_LE(cpu_level(), detected);
}

TEST(CpuLevel, UnknownNamesAreRefusedAsTheUsersMistake) {
  for (const std::string forced : {"avx", "AVX2", "avx512_bf16 ", "0"}) {
    try {
      choose_cpu_level(forced);
      FAIL() << forced;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("GRAMIAN_CPU_LEVEL"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace gramian
