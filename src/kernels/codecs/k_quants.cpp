// Bytes of a block (h: IEEE half). sc and mn are the quantized scale and minimum of a run.
//   Q2_K  16 bytes sc | mn << 4, 64 bytes q, h d, h dmin   (d*sc)*q - dmin*mn, 16 runs of 16. Byte 32c + i, c = 0, 1: weights
//         128c + i, + 32, + 64, + 96 from the low bits up
//   Q4_K  h d, h dmin, 12 bytes of scales, 128 bytes q     (d*sc)*q - dmin*mn, 8 runs of 32. Byte 32c + i, c = 0..3: low nibble
//         weight 64c + i, high nibble weight 64c + 32 + i
//   Q5_K  h d, h dmin, 12 bytes of scales, 32 bytes high bits, 128 bytes low nibbles: Q4_K with bit r of high byte i for weight i of
//         run r
//   Q6_K  128 bytes low nibbles, 64 bytes high pairs, 16 x i8 sc, h d   (d*sc)*(q-32), 16 runs of 16. Half c = 0, 1 (128 weights): low
//         byte 64c + i: weights i and i + 64, low byte 64c + 32 + i: weights i + 32 and i + 96 (low and high nibble);
//         high byte 32c + i: pairs of weights i, i + 32, i + 64, i + 96 from the low bits up
#include "kernels/codecs/k_quants.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/codecs/fit.h"
#include "kernels/codecs/rounding.h"

namespace gramian {
namespace {

constexpr int kBlock = 256;

// How a block with minima is fitted.
struct AffineKind {
  int runs;
  int scale_max;      // of sc and mn
  AffineRule plain;   // without importance
  float mean_factor;  // of the mean square in the weights with importance
};
constexpr AffineKind kQ2K = {
    16, 15, {.nmax = 3, .start = -0.5f, .step = 0.1f, .last = 15, .absolute = true}, 1};
constexpr AffineKind kQ4K = {8, 63, {.nmax = 15, .start = -1, .step = 0.1f, .last = 20}, 2};
constexpr AffineKind kQ5K = {8, 63, {.nmax = 31, .start = -0.5f, .step = 0.1f, .last = 15}, 2};

// A block before it is packed.
struct AffineBlock {
  uint8_t codes[kBlock];
  uint8_t sc[16];
  uint8_t mn[16];
  float d;
  float dmin;
};

void weigh(const AffineKind& kind, const float* x, const float* importance, float* w) noexcept {
  const int length = kBlock / kind.runs;
  const auto squares = [&](const float* values, int count) {
    float sum = 0;
    for (int i = 0; i < count; ++i) sum += values[i] * values[i];
    return sum;
  };
  if (importance != nullptr) {
    const float mean = kind.mean_factor * squares(x, kBlock) / kBlock;
    for (int i = 0; i < kBlock; ++i) w[i] = importance[i] * std::sqrt(mean + x[i] * x[i]);
  } else if (kind.plain.absolute) {
    for (int i = 0; i < kBlock; ++i) w[i] = std::fabs(x[i]);
  } else {
    for (int r = 0; r < kBlock; r += length) {
      const float root = std::sqrt(squares(x + r, length) / static_cast<float>(length));
      for (int i = r; i < r + length; ++i) w[i] = root + std::fabs(x[i]);
    }
  }
}

// Codes for the scales (or minima) of the runs; returns the scale of those. The weights' sums count with importance only.
float quantize_scales(const AffineKind& kind, const float* scales, const float* weights, bool importance,
                      uint8_t* codes) noexcept {
  if (importance) return unsigned_fit(scales, weights, kind.runs, kind.scale_max, codes);
  float largest = 0;
  for (int r = 0; r < kind.runs; ++r) largest = std::max(largest, scales[r]);
  const auto top = static_cast<float>(kind.scale_max);
  const float inverse = largest > 0 ? top / largest : 0;
  for (int r = 0; r < kind.runs; ++r) codes[r] = static_cast<uint8_t>(nearest(inverse * scales[r]));
  return largest / top;
}

void fit_block(CpuLevel level, const AffineKind& kind, const float* x, const float* importance,
               AffineBlock& block) noexcept {
  const int length = kBlock / kind.runs;
  float w[kBlock], sums[16], scales[16], minima[16];
  weigh(kind, x, importance, w);
  for (int r = 0; r < kind.runs; ++r) {
    sums[r] = 0;
    for (int i = 0; i < length; ++i) sums[r] += w[r * length + i];
  }
  const AffineRule rule = importance == nullptr ? kind.plain : AffineRule{.nmax = kind.plain.nmax};
  affine_fit(level, rule, x, w, kind.runs, length, block.codes, scales, minima);
  const bool weighted = importance != nullptr;
  block.d = f16_to_f32(f16_from_f32(quantize_scales(kind, scales, sums, weighted, block.sc)));
  block.dmin = f16_to_f32(f16_from_f32(quantize_scales(kind, minima, sums, weighted, block.mn)));
  for (int r = 0; r < kind.runs; ++r) {
    block.sc[r] = std::min<uint8_t>(block.sc[r], static_cast<uint8_t>(kind.scale_max));
    block.mn[r] = std::min<uint8_t>(block.mn[r], static_cast<uint8_t>(kind.scale_max));
    const float d = block.d * static_cast<float>(block.sc[r]);
    if (d == 0) continue;
    const float m = block.dmin * static_cast<float>(block.mn[r]);
    for (int i = r * length; i < (r + 1) * length; ++i)
      block.codes[i] = static_cast<uint8_t>(clamped(nearest((x[i] + m) / d), 0, rule.nmax));
  }
}

// The scales of Q4_K and Q5_K, 6 bits each: runs 0..3 in the low bits of bytes 0..3 (sc) and 4..7 (mn); runs 4..7 have
// four bits in the nibbles of bytes 8..11 and two on top of bytes 0..3 and 4..7.
void pack_scales(const uint8_t* sc, const uint8_t* mn, uint8_t* bytes) noexcept {
  for (int r = 0; r < 4; ++r) {
    bytes[r] = static_cast<uint8_t>(sc[r] | (sc[r + 4] >> 4) << 6);
    bytes[r + 4] = static_cast<uint8_t>(mn[r] | (mn[r + 4] >> 4) << 6);
    bytes[r + 8] = static_cast<uint8_t>((sc[r + 4] & 15) | (mn[r + 4] & 15) << 4);
  }
}

void unpack_scales(const uint8_t* bytes, uint8_t* sc, uint8_t* mn) noexcept {
  for (int r = 0; r < 4; ++r) {
    sc[r] = bytes[r] & 63;
    mn[r] = bytes[r + 4] & 63;
    sc[r + 4] = static_cast<uint8_t>((bytes[r + 8] & 15) | (bytes[r] >> 6) << 4);
    mn[r + 4] = static_cast<uint8_t>((bytes[r + 8] >> 4) | (bytes[r + 4] >> 6) << 4);
  }
}

// Q4_K and, with high bits, Q5_K.
template <bool kHigh>
struct Nibbles {
  static constexpr int kLow = 16 + (kHigh ? 32 : 0);
  static constexpr int kBytes = kLow + 128;

  static void encode(CpuLevel level, const float* x, int64_t n, const float* importance,
                     uint8_t* out) noexcept {
    AffineBlock block;
    for (int64_t at = 0; at < n; at += kBlock, out += kBytes) {
      fit_block(level, kHigh ? kQ5K : kQ4K, x + at, importance == nullptr ? nullptr : importance + at, block);
      store_half(out, block.d);
      store_half(out + 2, block.dmin);
      pack_scales(block.sc, block.mn, out + 4);
      std::memset(out + 16, 0, kBytes - 16);
      for (int r = 0; r < 8; ++r) {
        for (int i = 0; i < 32; ++i) {
          const unsigned q = block.codes[32 * r + i];
          out[kLow + r / 2 * 32 + i] |= static_cast<uint8_t>((q & 15u) << (r % 2 * 4));
          if constexpr (kHigh) out[16 + i] |= static_cast<uint8_t>((q >> 4) << r);
        }
      }
    }
  }

  static void decode(const uint8_t* in, int64_t n, float* out) noexcept {
    for (int64_t at = 0; at < n; at += kBlock, in += kBytes, out += kBlock) {
      uint8_t sc[8], mn[8];
      unpack_scales(in + 4, sc, mn);
      for (int r = 0; r < 8; ++r) {
        const float d = load_half(in) * static_cast<float>(sc[r]);
        const float m = load_half(in + 2) * static_cast<float>(mn[r]);
        for (int i = 0; i < 32; ++i) {
          int q = (in[kLow + r / 2 * 32 + i] >> (r % 2 * 4)) & 15;
          if constexpr (kHigh) q |= ((in[16 + i] >> r) & 1) << 4;
          out[32 * r + i] = d * static_cast<float>(q) - m;
        }
      }
    }
  }
};

constexpr int kQ6High = 128, kQ6Scales = 192, kQ6D = 208, kQ6Bytes = 210;

void pack_q6(const uint8_t* q, uint8_t* out) noexcept {
  for (int half = 0; half < 2; ++half, q += 128) {
    uint8_t* low = out + 64 * half;
    uint8_t* high = out + kQ6High + 32 * half;
    for (int i = 0; i < 64; ++i) low[i] = static_cast<uint8_t>((q[i] & 15) | q[i + 64] << 4);
    for (int i = 0; i < 32; ++i)
      high[i] =
          static_cast<uint8_t>(q[i] >> 4 | q[i + 32] >> 4 << 2 | q[i + 64] >> 4 << 4 | q[i + 96] >> 4 << 6);
  }
}

void encode_q6_block(CpuLevel level, const float* x, const float* importance, uint8_t* out) noexcept {
  constexpr int kRuns = 16, kRun = 16, kTop = 32;
  float w[kBlock], scales[kRuns];
  uint8_t q[kBlock];
  for (int i = 0; i < kBlock; ++i) w[i] = importance == nullptr ? x[i] * x[i] : importance[i];
  signed_fit(level, kTop, x, w, kRuns, kRun, nullptr, scales);
  float largest = 0, scale = 0;
  for (const float s : scales) {
    if (std::fabs(s) > largest) largest = std::fabs(s), scale = s;
  }
  if (largest < kZeroRun) {
    std::memset(out, 0, kQ6Bytes);
    return;
  }
  const float inverse = -128.0f / scale;
  store_half(out + kQ6D, 1 / inverse);
  for (int r = 0; r < kRuns; ++r) {
    const float* run = x + r * kRun;
    const int sc = std::min(127, nearest(inverse * scales[r]));
    out[kQ6Scales + r] = static_cast<uint8_t>(sc);
    const float d = load_half(out + kQ6D) * static_cast<float>(static_cast<int8_t>(sc));
    if (d == 0) {
      // What the search chose stays, though it is multiplied with nothing.
      float unused;
      signed_fit(level, kTop, run, w + r * kRun, 1, kRun, q + r * kRun, &unused);
      continue;
    }
    for (int i = 0; i < kRun; ++i)
      q[r * kRun + i] = static_cast<uint8_t>(clamped(nearest(run[i] / d), -kTop, kTop - 1) + kTop);
  }
  pack_q6(q, out);
}

constexpr int kQ2Codes = 16, kQ2D = 80, kQ2Bytes = 84;

}  // namespace

void encode_q6_k(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept {
  for (int64_t at = 0; at < n; at += kBlock, out += kQ6Bytes)
    encode_q6_block(level, x + at, importance == nullptr ? nullptr : importance + at, out);
}

void decode_q6_k(const uint8_t* in, int64_t n, float* out) noexcept {
  for (int64_t at = 0; at < n; at += kBlock, in += kQ6Bytes, out += kBlock) {
    const float d = load_half(in + kQ6D);
    for (int i = 0; i < kBlock; ++i) {
      const int half = i / 128, quarter = i % 128 / 32, j = i % 32;
      const int low = in[64 * half + quarter % 2 * 32 + j] >> (quarter / 2 * 4);
      const int high = in[kQ6High + 32 * half + j] >> (quarter * 2);
      const int q = (low & 15) | (high & 3) << 4;
      out[i] =
          d * static_cast<float>(static_cast<int8_t>(in[kQ6Scales + i / 16])) * static_cast<float>(q - 32);
    }
  }
}

void encode_q5_k(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept {
  Nibbles<true>::encode(level, x, n, importance, out);
}
void decode_q5_k(const uint8_t* in, int64_t n, float* out) noexcept { Nibbles<true>::decode(in, n, out); }
void encode_q4_k(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept {
  Nibbles<false>::encode(level, x, n, importance, out);
}
void decode_q4_k(const uint8_t* in, int64_t n, float* out) noexcept { Nibbles<false>::decode(in, n, out); }

void encode_q2_k(CpuLevel level, const float* x, int64_t n, const float* importance, uint8_t* out) noexcept {
  AffineBlock block;
  for (int64_t at = 0; at < n; at += kBlock, out += kQ2Bytes) {
    fit_block(level, kQ2K, x + at, importance == nullptr ? nullptr : importance + at, block);
    std::memset(out, 0, kQ2Bytes);
    for (int r = 0; r < 16; ++r) out[r] = static_cast<uint8_t>(block.sc[r] | block.mn[r] << 4);
    store_half(out + kQ2D, block.d);
    store_half(out + kQ2D + 2, block.dmin);
    for (int i = 0; i < kBlock; ++i)
      out[kQ2Codes + i / 128 * 32 + i % 32] |= static_cast<uint8_t>(block.codes[i] << (i % 128 / 32 * 2));
  }
}

void decode_q2_k(const uint8_t* in, int64_t n, float* out) noexcept {
  for (int64_t at = 0; at < n; at += kBlock, in += kQ2Bytes, out += kBlock) {
    const float d = load_half(in + kQ2D), dmin = load_half(in + kQ2D + 2);
    for (int i = 0; i < kBlock; ++i) {
      const int scales = in[i / 16];
      const int q = (in[kQ2Codes + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
      out[i] = d * static_cast<float>(scales & 15) * static_cast<float>(q) -
               dmin * static_cast<float>(scales >> 4);
    }
  }
}

}  // namespace gramian
