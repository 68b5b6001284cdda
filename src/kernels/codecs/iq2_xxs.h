// IQ2_XXS: 256 weights in 66 bytes, 2.0625 bits a weight. Bytes of a block:
//
//   0..1   d, IEEE half
//   2..65  eight sub-blocks of 32 weights, two u32 each:
//          word 0: four points of the grid (byte k: weights 8k .. 8k + 7)
//          word 1: bits 7k .. 7k + 6 the signs of group k, bits 28 .. 31 the scale's code l
//
//   weight = d * (0.5 + l) * 0.25 * {8, 25, 43}[level] * sign
//
// Bit i of a sign code: weight i is negative; the eighth sign makes the number of negative weights even.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"

namespace gramian {

// llama.cpp's search, byte for byte: for each sub-block a scale by weighted least squares over 13 candidates, each with the
// nearest points of the grid; a weight's weight is importance * sqrt(mean square of the block + its square).
// `importance` must not be null. Every level gives the same bytes.
void encode_iq2_xxs(CpuLevel level, const float* x, int64_t n, const float* importance,
                    uint8_t* out) noexcept;

// One pass: d from the block's largest magnitude and root mean square alone, then for each sub-block the scale code whose best
// points have the smallest squared error, weighted by importance (null: by 1). The flip that makes signs even is part of the
// error.
void encode_iq2_xxs_anchored(CpuLevel, const float* x, int64_t n, const float* importance,
                             uint8_t* out) noexcept;

void decode_iq2_xxs(const uint8_t* in, int64_t n, float* out) noexcept;

}  // namespace gramian
