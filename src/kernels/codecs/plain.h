// F32, F16 and BF16 as codecs with blocks of one weight. See EncodeRow and DecodeRow.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"

namespace gramian {

void encode_f32(CpuLevel, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_f32(const uint8_t* in, int64_t n, float* out) noexcept;
void encode_f16(CpuLevel, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_f16(const uint8_t* in, int64_t n, float* out) noexcept;
void encode_bf16(CpuLevel, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_bf16(const uint8_t* in, int64_t n, float* out) noexcept;

}  // namespace gramian
