#include "kernels/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace gramian {
namespace {

// The value of a 16-bit float, from its definition.
double value_of(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

struct Kind {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
};
const Kind kKinds[] = {
    {"f16", 5, 10, [](uint16_t bits) { return f16_to_f32(bits); },
     [](float value) { return f16_from_f32(value); }},
    {"bf16", 8, 7, [](uint16_t bits) { return bf16_to_f32(bits); },
     [](float value) { return bf16_from_f32(value); }},
};

TEST(Float16, EveryValueWidensExactlyAndComesBack) {
  for (const Kind& kind : kKinds) {
    for (int i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      const double expected = value_of(bits, kind.exponent_bits, kind.mantissa_bits);
      const float found = kind.widen(bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(found)) << kind.name << " " << i;
        ASSERT_TRUE(std::isnan(kind.widen(kind.narrow(found)))) << kind.name << " " << i;
      } else {
        ASSERT_EQ(static_cast<double>(found), expected) << kind.name << " " << i;
        ASSERT_EQ(std::signbit(found), (bits & 0x8000) != 0) << kind.name << " " << i;
        ASSERT_EQ(kind.narrow(found), bits) << kind.name << " " << i;
      }
    }
  }
}

// Every pair of neighbours: below the middle goes down, above it up, the middle itself to the even one.
TEST(Float16, NarrowingRoundsToNearestTiesToEvenBetweenAllNeighbours) {
  for (const Kind& kind : kKinds) {
    const int infinity = ((1 << kind.exponent_bits) - 1) << kind.mantissa_bits;
    for (int i = 0; i < infinity; ++i) {
      const auto low = static_cast<uint16_t>(i);
      const auto high = static_cast<uint16_t>(i + 1);
      // The step above the largest finite value stands where the next value would be.
      const double next = i + 1 == infinity ? 2 * value_of(low, kind.exponent_bits, kind.mantissa_bits) -
                                                  value_of(static_cast<uint16_t>(i - 1), kind.exponent_bits,
                                                           kind.mantissa_bits)
                                            : value_of(high, kind.exponent_bits, kind.mantissa_bits);
      const auto middle =
          static_cast<float>((value_of(low, kind.exponent_bits, kind.mantissa_bits) + next) / 2);
      const uint16_t even = (i & 1) == 0 ? low : high;
      ASSERT_EQ(kind.narrow(middle), even) << kind.name << " " << i;
      ASSERT_EQ(kind.narrow(-middle), even | 0x8000) << kind.name << " " << i;
      ASSERT_EQ(kind.narrow(std::nextafter(middle, 0.0f)), low) << kind.name << " " << i;
      ASSERT_EQ(kind.narrow(std::nextafter(middle, std::numeric_limits<float>::infinity())), high)
          << kind.name << " " << i;
    }
  }
}

TEST(Float16, KnownValues) {
  EXPECT_EQ(f16_from_f32(1.0f), 0x3c00);
  EXPECT_EQ(f16_from_f32(-2.0f), 0xc000);
  EXPECT_EQ(f16_from_f32(65504.0f), 0x7bff);
  EXPECT_EQ(f16_from_f32(65519.0f), 0x7bff);
  EXPECT_EQ(f16_from_f32(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_f32(3e38f), 0x7c00);
  EXPECT_EQ(f16_from_f32(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(f16_from_f32(0x1p-24f), 0x0001);
  EXPECT_EQ(f16_from_f32(0x1p-25f), 0x0000);
  EXPECT_EQ(f16_from_f32(-0x1p-149f), 0x8000);
  EXPECT_EQ(bf16_from_f32(1.0f), 0x3f80);
  EXPECT_EQ(bf16_from_f32(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_from_f32(0x1p-149f), 0x0000);
  EXPECT_EQ(bf16_from_f32(0x1p-133f), 0x0001);
}

}  // namespace
}  // namespace gramian
