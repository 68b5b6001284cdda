// The grid of IQ2_XXS and what is derived from it. Internal to the codec.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/cpu_level.h"

namespace gramian::iq2_xxs {

inline constexpr int kBlock = 256, kSubBlock = 32, kGroup = 8;
inline constexpr int kBytes = 66;
inline constexpr int kLevels = 3;
// Level combinations of a group. A combination's number is sum of level[i] * 3^i.
inline constexpr int kCombinations = 6561;
// What levels decode to, and what the search takes them for (2 * level + 1): different on purpose, both as llama.cpp.
inline constexpr float kDecoded[kLevels] = {8, 25, 43};

// Points near a combination that is not on the grid: all at the two smallest distances from it, by (distance, index).
struct Neighbours {
  uint32_t first;  // into Tables::points and Tables::codes
  uint16_t count;
};

struct Tables {
  std::array<std::array<uint8_t, kGroup>, 256> levels;
  // [i][p]: what weight i of point p decodes to at scale 1.
  std::array<std::array<float, 256>, kGroup> decoded;
  // [p][i] the same, and the sign bits that code s gives to weight i of a group.
  std::array<std::array<float, kGroup>, 256> values;
  std::array<std::array<uint32_t, kGroup>, 128> sign_bits;
  // Combination -> point of the grid, or -1.
  std::array<int16_t, kCombinations> point;
  std::array<Neighbours, kCombinations> neighbours;
  // Lists are padded to multiples of sixteen: with points that never count (code 0xffff, levels 3).
  std::vector<uint8_t> points;
  std::vector<uint16_t> codes;  // levels of the points, level i in bits 2i and 2i + 1
};

// Made at the first call, in a few milliseconds; any thread.
const Tables& tables();

// Sign code of seven bits -> eight signs.
[[gnu::always_inline]] inline unsigned all_signs(unsigned code) noexcept {
  return code | static_cast<unsigned>(__builtin_parity(code)) << 7;
}

// The scales of a block's eight sub-blocks -> d and the scale codes, in place. `words` [16]: two words of each sub-block.
void store_block(const float* scales, uint32_t* words, uint8_t* out) noexcept;

// The text to read first: one sub-block after the other, as written down. x, importance [256].
void encode_block_ref(const Tables& tables, const float* x, const float* importance, uint8_t* out) noexcept;
// A row of them [n] with the eight sub-blocks of one block (AVX2) or of two (AVX-512) in the lanes: the same bytes. On other CPUs than
// x86-64 it does nothing and is not called.
void encode_row_lanes(CpuLevel level, const float* x, int64_t n, const float* importance,
                      uint8_t* out) noexcept;

}  // namespace gramian::iq2_xxs
