// Exact conversions between f32 and the 16-bit floats: widening keeps every value, narrowing rounds to
// nearest, ties to even, with subnormals and infinities; a NaN stays a (quiet) NaN. Without branches, so that
// loops over them vectorize, and without subnormal f32 operands, so that a flush-to-zero mode of the CPU
// changes nothing.
#pragma once

#include <bit>
#include <cstdint>

namespace gramian {

[[gnu::always_inline]] inline float f16_to_f32(uint16_t half) noexcept {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  // Exponent bias 15 -> 127; an exponent of all ones stays all ones.
  const uint32_t normal = (magnitude << 13) + ((127u - 15u) << 23);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t bits = magnitude < 0x0400u ? subnormal : normal;
  bits = magnitude >= 0x7c00u ? special : bits;
  return std::bit_cast<float>(bits | sign);
}

[[gnu::always_inline]] inline uint16_t f16_from_f32(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Adding just under half a unit plus the last kept bit rounds ties to even; a carry moves into the
  // exponent, up to infinity.
  const uint32_t normal = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - ((127u - 15u) << 23)) >> 13;
  // The unit of 0.5 is 2^-24, the unit of f16 subnormals: the addition rounds.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x47800000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  return static_cast<uint16_t>(half | sign);
}

[[gnu::always_inline]] inline float bf16_to_f32(uint16_t value) noexcept {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

[[gnu::always_inline]] inline uint16_t bf16_from_f32(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? ((bits >> 16) | 0x7fc0u) : rounded);
}

// A float type by the bits that lie in memory; may_alias, because the memory holds float or a half type of the
// caller.
struct F32 {
  using Stored [[gnu::may_alias]] = uint32_t;
  static constexpr Stored kMagnitude = 0x7fffffffu;
  static constexpr Stored kInfinity = 0x7f800000u;
  [[gnu::always_inline]] static float widen(Stored bits) noexcept { return std::bit_cast<float>(bits); }
  [[gnu::always_inline]] static Stored narrow(float value) noexcept { return std::bit_cast<Stored>(value); }
};
struct F16 {
  using Stored [[gnu::may_alias]] = uint16_t;
  static constexpr Stored kMagnitude = 0x7fffu;
  static constexpr Stored kInfinity = 0x7c00u;
  [[gnu::always_inline]] static float widen(Stored bits) noexcept { return f16_to_f32(bits); }
  [[gnu::always_inline]] static Stored narrow(float value) noexcept { return f16_from_f32(value); }
};
struct BF16 {
  using Stored [[gnu::may_alias]] = uint16_t;
  static constexpr Stored kMagnitude = 0x7fffu;
  static constexpr Stored kInfinity = 0x7f80u;
  [[gnu::always_inline]] static float widen(Stored bits) noexcept { return bf16_to_f32(bits); }
  [[gnu::always_inline]] static Stored narrow(float value) noexcept { return bf16_from_f32(value); }
};

}  // namespace gramian
