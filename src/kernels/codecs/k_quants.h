// Q6_K, Q5_K, Q4_K and Q2_K: blocks of 256 weights in runs of 16 or 32, whose scales are quantized themselves. See EncodeRow
// and DecodeRow.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"

namespace gramian {

void encode_q6_k(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_q6_k(const uint8_t* in, int64_t n, float* out) noexcept;
void encode_q5_k(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_q5_k(const uint8_t* in, int64_t n, float* out) noexcept;
void encode_q4_k(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_q4_k(const uint8_t* in, int64_t n, float* out) noexcept;
void encode_q2_k(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_q2_k(const uint8_t* in, int64_t n, float* out) noexcept;

}  // namespace gramian
