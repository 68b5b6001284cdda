// The integer product of a W4A8 layer over weights that stay in 4 bits: acc[m,n] = sum_k q[m,k] · v[n,k], exact and the same
// at every level. Few rows stream the codes once and expand them in registers; many rows expand a part of them once and
// multiply it with all rows.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"
#include "kernels/w4a8/w4a8.h"

namespace gramian::w4a8 {

inline constexpr int64_t kPanel = 16;   // channels whose codes lie together
inline constexpr int64_t kGroup = 128;  // inputs under one ratio
inline constexpr int64_t kFewRows = 4;
// Rows of one multiply_many, whose sums a caller keeps on its stack beside those of kManyChannels channels.
inline constexpr int64_t kManyRows = 384;
inline constexpr int64_t kManyChannels = 32;

// Weights of `channels` outputs (a multiple of 32) and k inputs (a multiple of 32). Of 16 channels and 32 inputs the codes,
// each plus 8, are 4 vectors of 64 bytes: in vector j bytes 16c .. 16c+15 are of channel 4c + j, byte 16c + b holds input b in
// its low and 16 + b in its high half. So the 16 bytes of a channel meet the 16 values of its group in one byte shuffle, and four
// vectors transposed are what many rows multiply with.
struct Weights {
  const uint8_t* codes = nullptr;  // [channels / 16][k / 32][4][64]
  // f16 [channels / 16][k / 128][16]: v = clamp(rne(code · ratio), -128, 127). Null: v = 16 · code.
  const uint16_t* ratios = nullptr;
  int64_t channels = 0;
  int64_t k = 0;
};

// codes [channels, k] from -8 to 7 -> Weights::codes, channels · k / 2 bytes.
void pack_codes(const int8_t* codes, int64_t channels, int64_t k, uint8_t* to) noexcept;
// ratios f32 [k / 128, channels] -> Weights::ratios. Returns whether f16 gives every code the value that f32 gives it.
bool pack_ratios(const float* ratios, int64_t channels, int64_t k, uint16_t* to) noexcept;

// Up to kFewRows rows q [rows, k] times channels first .. first + count, multiples of 16 -> acc [rows, count].
void multiply_few(CpuLevel level, const Weights& weights, int64_t first, int64_t count, const int8_t* q,
                  int64_t rows, int32_t* acc) noexcept;

// Bytes of the copy that multiply_many reads of `rows` rows, in the order of its level.
int64_t operand_bytes(CpuLevel level, int64_t rows, int64_t k) noexcept;
// Bytes from one row to a later one of the copy, where both stand at multiples of kOperandRows.
inline constexpr int64_t kOperandRows = 12;
int64_t operand_stride(CpuLevel level, int64_t k) noexcept;
// q [rows, k] -> the copy of these rows, and the sum of each. Parts of a larger copy may be made one by one when all but the last have
// a multiple of kOperandRows rows.
void arrange_rows(CpuLevel level, const int8_t* q, int64_t rows, int64_t k, uint8_t* operand,
                  int32_t* sums) noexcept;
// Up to kManyRows rows of such a copy, from a multiple of kOperandRows on, times kManyChannels channels from `first`, a multiple of
// 32 -> acc [rows rounded up to a multiple of 4, kManyChannels]. Uses 130 KiB of stack.
void multiply_many(CpuLevel level, const Weights& weights, int64_t first, const uint8_t* operand,
                   const int32_t* sums, int64_t rows, int32_t* acc) noexcept;

}  // namespace gramian::w4a8
