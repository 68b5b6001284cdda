// Bytes of a block (h: IEEE half):
//   Q8_0  h d, 32 x i8                                     d * q
//   Q4_0  h d, 16 bytes                                    d * (q - 8);  byte j: low nibble weight j, high nibble weight j + 16
//   Q4_1  h d, h m, 16 bytes                               d * q + m
//   Q5_0  h d, u32 high bits (bit j: weight j), 16 bytes   d * (q - 16)
//   Q5_1  h d, h m, u32 high bits, 16 bytes                d * q + m
#include "kernels/codecs/small_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/codecs/fit.h"
#include "kernels/codecs/rounding.h"

namespace gramian {
namespace {

constexpr int kBlock = 32;
// Blocks that are fitted at once.
constexpr int kBatch = 8;

template <int kBits, bool kMin>
struct Layout {
  static constexpr int kHigh = kMin ? 4 : 2;  // where the high bits stand
  static constexpr int kLow = kHigh + (kBits == 5 ? 4 : 0);
  static constexpr int kBytes = kLow + kBlock / 2;
  static constexpr int kCodes = 1 << kBits;

  static void store(uint8_t* block, float d, float m, const uint8_t* codes) noexcept {
    store_half(block, d);
    if constexpr (kMin) store_half(block + 2, m);
    uint32_t high = 0;
    for (int j = 0; j < kBlock / 2; ++j) {
      const unsigned a = codes[j], b = codes[j + kBlock / 2];
      block[kLow + j] = static_cast<uint8_t>((a & 15u) | (b & 15u) << 4);
      high |= (a >> 4) << j | (b >> 4) << (j + kBlock / 2);
    }
    if constexpr (kBits == 5) std::memcpy(block + kHigh, &high, sizeof(high));
  }

  static void decode(const uint8_t* block, float* out) noexcept {
    const float d = load_half(block);
    uint32_t high = 0;
    if constexpr (kBits == 5) std::memcpy(&high, block + kHigh, sizeof(high));
    for (int j = 0; j < kBlock; ++j) {
      const int byte = block[kLow + j % (kBlock / 2)];
      const int low = j < kBlock / 2 ? byte & 15 : byte >> 4;
      const int q = low | static_cast<int>((high >> j) & 1u) << 4;
      if constexpr (kMin) {
        out[j] = d * static_cast<float>(q) + load_half(block + 2);
      } else {
        out[j] = d * static_cast<float>(q - kCodes / 2);
      }
    }
  }
};

// The value of largest magnitude (the first one; +0 in a block of zeros) gets the code of -kCodes / 2.
template <class L>
void encode_signed(const float* x, uint8_t* block) noexcept {
  float largest = 0, value = 0;
  for (int j = 0; j < kBlock; ++j) {
    if (std::fabs(x[j]) > largest) largest = std::fabs(x[j]), value = x[j];
  }
  constexpr int kHalf = L::kCodes / 2;
  const float d = value / static_cast<float>(-kHalf);
  const float inverse = d != 0 ? 1 / d : 0;
  uint8_t codes[kBlock];
  for (int j = 0; j < kBlock; ++j) {
    const int q = truncated(x[j] * inverse + (static_cast<float>(kHalf) + 0.5f));
    codes[j] = static_cast<uint8_t>(std::min(q, L::kCodes - 1));
  }
  L::store(block, d, 0, codes);
}

template <class L>
void encode_affine(const float* x, uint8_t* block) noexcept {
  float min = x[0], max = x[0];
  for (int j = 1; j < kBlock; ++j) {
    min = x[j] < min ? x[j] : min;
    max = x[j] > max ? x[j] : max;
  }
  const float d = (max - min) / static_cast<float>(L::kCodes - 1);
  const float inverse = d != 0 ? 1 / d : 0;
  uint8_t codes[kBlock];
  for (int j = 0; j < kBlock; ++j) {
    const int q = truncated((x[j] - min) * inverse + 0.5f);
    codes[j] = static_cast<uint8_t>(std::min(q, L::kCodes - 1));
  }
  L::store(block, d, min, codes);
}

template <int kBits, bool kMin>
void encode(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept {
  using L = Layout<kBits, kMin>;
  if (importance == nullptr) {
    for (int64_t i = 0; i < n; i += kBlock, out += L::kBytes)
      kMin ? encode_affine<L>(x + i, out) : encode_signed<L>(x + i, out);
    return;
  }
  float squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const float mean = squares / static_cast<float>(n);
  for (int64_t i = 0; i < n; i += kBatch * kBlock) {
    const int blocks = static_cast<int>(std::min<int64_t>(kBatch, (n - i) / kBlock));
    float w[kBatch * kBlock], d[kBatch], minus_min[kBatch] = {};
    uint8_t codes[kBatch * kBlock];
    for (int j = 0; j < blocks * kBlock; ++j)
      w[j] = importance[i + j] * std::sqrt(mean + x[i + j] * x[i + j]);
    if constexpr (kMin) {
      affine_fit(level, {.nmax = L::kCodes - 1}, x + i, w, blocks, kBlock, codes, d, minus_min);
    } else {
      signed_fit(level, L::kCodes / 2, x + i, w, blocks, kBlock, codes, d);
    }
    for (int b = 0; b < blocks; ++b, out += L::kBytes) L::store(out, d[b], -minus_min[b], codes + b * kBlock);
  }
}

template <int kBits, bool kMin>
void decode(const uint8_t* in, int64_t n, float* out) noexcept {
  using L = Layout<kBits, kMin>;
  for (int64_t i = 0; i < n; i += kBlock, in += L::kBytes) L::decode(in, out + i);
}

}  // namespace

void encode_q8_0(CpuLevel, const float* x, int64_t n, const float*, uint8_t* out) noexcept {
  for (int64_t i = 0; i < n; i += kBlock, x += kBlock, out += 2 + kBlock) {
    float largest = 0;
    for (int j = 0; j < kBlock; ++j) largest = std::max(largest, std::fabs(x[j]));
    const float d = largest / 127;
    const float inverse = d != 0 ? 1 / d : 0;
    store_half(out, d);
    for (int j = 0; j < kBlock; ++j) out[2 + j] = static_cast<uint8_t>(away_from_zero(x[j] * inverse));
  }
}

void decode_q8_0(const uint8_t* in, int64_t n, float* out) noexcept {
  for (int64_t i = 0; i < n; i += kBlock, in += 2 + kBlock) {
    const float d = load_half(in);
    for (int j = 0; j < kBlock; ++j) out[i + j] = d * static_cast<float>(static_cast<int8_t>(in[2 + j]));
  }
}

void encode_q5_1(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept {
  encode<5, true>(level, x, n, importance, out);
}
void decode_q5_1(const uint8_t* in, int64_t n, float* out) noexcept { decode<5, true>(in, n, out); }
void encode_q5_0(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept {
  encode<5, false>(level, x, n, importance, out);
}
void decode_q5_0(const uint8_t* in, int64_t n, float* out) noexcept { decode<5, false>(in, n, out); }
void encode_q4_1(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept {
  encode<4, true>(level, x, n, importance, out);
}
void decode_q4_1(const uint8_t* in, int64_t n, float* out) noexcept { decode<4, true>(in, n, out); }
void encode_q4_0(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept {
  encode<4, false>(level, x, n, importance, out);
}
void decode_q4_0(const uint8_t* in, int64_t n, float* out) noexcept { decode<4, false>(in, n, out); }

}  // namespace gramian
