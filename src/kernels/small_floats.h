// The floats of 8 and 4 bits that checkpoints store.
//   E4M3  sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, 0x7f and 0xff are NaN; largest 448, smallest 2^-9
//   E2M1  sign, 2 bits of exponent (bias 1), 1 of mantissa: {0, 0.5, 1, 1.5, 2, 3, 4, 6} and their negatives
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace gramian {

// By code.
inline constexpr std::array<float, 256> kE4m3 = [] {
  std::array<float, 256> values{};
  for (unsigned code = 0; code < 256; ++code) {
    const unsigned exponent = code >> 3 & 15, mantissa = code & 7;
    // 2^(exponent - 10), the unit of the mantissa; subnormals have that of exponent 1.
    const auto unit = std::bit_cast<float>(((exponent == 0 ? 1 : exponent) + 127u - 10u) << 23);
    const float magnitude = (code & 0x7f) == 0x7f
                                ? std::numeric_limits<float>::quiet_NaN()
                                : static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) * unit;
    values[code] = (code & 0x80) != 0 ? -magnitude : magnitude;
  }
  return values;
}();
inline constexpr std::array<float, 16> kE2m1{0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                             -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
inline constexpr float kE4m3Most = 448, kE2m1Most = 6;

// The code of a value that is not negative: round to nearest, ties to the even code, 448 beyond the range. NaN: its code.
constexpr uint8_t e4m3_from_f32(float value) noexcept {
  if (value != value) return 0x7f;
  if (value >= kE4m3Most) return 0x7e;
  // Below 2^-6 all values are multiples of 2^-9: adding 1.5 * 2^14 (unit 2^-9) rounds.
  if (value < 0x1p-6f)
    return static_cast<uint8_t>(static_cast<int>(((value + 0x1.8p14f) - 0x1.8p14f) * 0x1p9f));
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7ffffu + (bits >> 20 & 1u);
  return static_cast<uint8_t>((rounded >> 20) - ((127u - 7u) << 3));
}

// The code of a value that is not negative: round to nearest, ties to the even code, 6 beyond the range and for NaN.
constexpr uint8_t e2m1_from_f32(float value) noexcept {
  // Steps are 0.5 below 2, 1 up to 4 and 2 from there on; adding 1.5 * 2^23 rounds to whole numbers.
  const auto whole = [](float x) { return static_cast<int>((x + 0x1.8p23f) - 0x1.8p23f); };
  if (value < 2) return static_cast<uint8_t>(whole(value * 2));
  if (value < 4) return static_cast<uint8_t>(whole(value) + 2);
  return value <= 5 ? 6 : 7;
}

}  // namespace gramian
