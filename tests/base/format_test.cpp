#include "base/format.h"

#include <gtest/gtest.h>

#include <limits>

namespace gramian {
namespace {

TEST(Format, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(10492416), "10.49 MB");
  EXPECT_EQ(human_bytes(172060672), "172 MB");
  EXPECT_EQ(human_bytes(5e15), "5000 TB");
}

TEST(Format, FixedOfAnySize) {
  EXPECT_EQ(fixed(17.5385, 3), "17.538");
  EXPECT_EQ(fixed(-0.25, 1), "-0.2");
  EXPECT_EQ(fixed(123456789012345, 0), "123456789012345");
  EXPECT_EQ(fixed(1e300, 3), "1.000e+300");
}

TEST(Format, ScientificOnlyWhereFixedSaysNothing) {
  EXPECT_EQ(fixed_or_scientific(17.5385, 3), "17.538");
  EXPECT_EQ(fixed_or_scientific(0, 3), "0.000");
  EXPECT_EQ(fixed_or_scientific(0.0006, 3), "0.001");
  EXPECT_EQ(fixed_or_scientific(0.0004, 3), "4.00e-04");
  EXPECT_EQ(fixed_or_scientific(-1.3e-7, 5), "-1.30e-07");
  EXPECT_EQ(fixed_or_scientific(999999, 0), "999999");
  EXPECT_EQ(fixed_or_scientific(8.123e9, 3), "8.12e+09");
}

TEST(Format, Grouped) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(26775), "26,775");
  EXPECT_EQ(grouped(-123456), "-123,456");
  EXPECT_EQ(grouped(std::numeric_limits<int64_t>::max()), "9,223,372,036,854,775,807");
}

TEST(Format, DecimalsForSignificantDigits) {
  EXPECT_EQ(decimals_of(0.00482, 3), 5);
  EXPECT_EQ(decimals_of(17.5, 5), 3);
  EXPECT_EQ(decimals_of(-0.5, 2), 2);
  EXPECT_EQ(decimals_of(123456, 5), 0);
  EXPECT_EQ(decimals_of(1e-30, 3), 9);
  EXPECT_EQ(decimals_of(0, 3), 0);
  EXPECT_EQ(decimals_of(std::numeric_limits<double>::infinity(), 3), 0);
}

}  // namespace
}  // namespace gramian
