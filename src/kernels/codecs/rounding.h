// Roundings of GGML's encoders, and half floats in bytes.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/float16.h"

namespace gramian {

// To the nearest integer, ties to even, for |value| < 2^22. Beyond, and for NaN, what the same bits give.
[[gnu::always_inline]] inline int nearest(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 12582912.0f);
  return static_cast<int>(bits & 0x007fffffu) - 0x00400000;
}

[[gnu::always_inline]] inline int clamped(int value, int low, int high) noexcept {
  return value < low ? low : value > high ? high : value;
}

// Towards zero; 0 for what no int holds (a product with the reciprocal of a subnormal).
[[gnu::always_inline]] inline int truncated(float value) noexcept {
  return value > -0x1p31f && value < 0x1p31f ? static_cast<int>(value) : 0;
}

// To the nearest integer, halves away from zero; 0 for what no int holds.
[[gnu::always_inline]] inline int away_from_zero(float value) noexcept {
  const float held = value > -0x1p31f && value < 0x1p31f ? value : 0;
  const int whole = static_cast<int>(held);
  const float rest = held - static_cast<float>(whole);
  return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

inline void store_half(uint8_t* out, float value) noexcept {
  const uint16_t half = f16_from_f32(value);
  std::memcpy(out, &half, sizeof(half));
}

inline float load_half(const uint8_t* in) noexcept {
  uint16_t half;
  std::memcpy(&half, in, sizeof(half));
  return f16_to_f32(half);
}

}  // namespace gramian
