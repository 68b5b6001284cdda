#include "base/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace gramian {
namespace {

constexpr int kTypes = static_cast<int>(DType::f8_e8m0) + 1;

TEST(DType, EveryNameLeadsBackToItsType) {
  std::set<std::string> names;
  for (int i = 0; i < kTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype) << dtype_name(dtype);
    names.emplace(dtype_name(dtype));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kTypes));
  EXPECT_EQ(dtype_from_name("f32"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

TEST(DType, TheNumberInANameIsItsBits) {
  for (int i = 0; i < kTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name(dtype_name(dtype));
    if (dtype == DType::boolean) {
      EXPECT_EQ(dtype_bytes(dtype), 1u);
      continue;
    }
    const size_t digit = name.find_first_of("0123456789");
    EXPECT_EQ(8 * dtype_bytes(dtype), std::stoul(name.substr(digit))) << name;
  }
}

}  // namespace
}  // namespace gramian
