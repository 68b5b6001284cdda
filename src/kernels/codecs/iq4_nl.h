// IQ4_NL: blocks of 32 weights with one scale and sixteen uneven levels. See EncodeRow and DecodeRow.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"

namespace gramian {

void encode_iq4_nl(CpuLevel, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_iq4_nl(const uint8_t* in, int64_t n, float* out) noexcept;

}  // namespace gramian
