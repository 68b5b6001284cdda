// Q8_0, Q5_1, Q5_0, Q4_1 and Q4_0: blocks of 32 weights with one scale, or a scale and a minimum. See EncodeRow and
// DecodeRow.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"

namespace gramian {

// Ignores importance.
void encode_q8_0(CpuLevel, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_q8_0(const uint8_t* in, int64_t n, float* out) noexcept;
void encode_q5_1(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_q5_1(const uint8_t* in, int64_t n, float* out) noexcept;
void encode_q5_0(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_q5_0(const uint8_t* in, int64_t n, float* out) noexcept;
void encode_q4_1(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_q4_1(const uint8_t* in, int64_t n, float* out) noexcept;
void encode_q4_0(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept;
void decode_q4_0(const uint8_t* in, int64_t n, float* out) noexcept;

}  // namespace gramian
