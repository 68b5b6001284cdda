#include "kernels/codecs/iq2_xxs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/codecs/iq2_xxs_tables.h"
#include "kernels/codecs/rounding.h"

namespace gramian {
namespace iq2_xxs {

void store_block(const float* scales, uint32_t* words, uint8_t* out) noexcept {
  const float largest = *std::max_element(scales, scales + kBlock / kSubBlock);
  if (largest == 0) {
    std::memset(out, 0, kBytes);
    return;
  }
  // The codes belong to d before it is rounded.
  const float d = largest / 31;
  const float inverse = 1 / d;
  for (int b = 0; b < kBlock / kSubBlock; ++b) {
    const int code = clamped(nearest(0.5f * (inverse * scales[b] - 1)), 0, 15);
    words[2 * b + 1] |= static_cast<uint32_t>(code) << 28;
  }
  store_half(out, d);
  std::memcpy(out + 2, words, kBytes - 2);
}

}  // namespace iq2_xxs

void encode_iq2_xxs(CpuLevel level, const float* x, int64_t n, const float* importance,
                    uint8_t* out) noexcept {
  if (level >= CpuLevel::avx2) return iq2_xxs::encode_row_lanes(level, x, n, importance, out);
  const iq2_xxs::Tables& tables = iq2_xxs::tables();
  for (int64_t at = 0; at < n; at += iq2_xxs::kBlock, out += iq2_xxs::kBytes)
    iq2_xxs::encode_block_ref(tables, x + at, importance + at, out);
}

void decode_iq2_xxs(const uint8_t* in, int64_t n, float* out) noexcept {
  const iq2_xxs::Tables& tables = iq2_xxs::tables();
  for (int64_t at = 0; at < n; at += iq2_xxs::kBlock, in += iq2_xxs::kBytes) {
    const float d = load_half(in);
    for (int b = 0; b < iq2_xxs::kBlock / iq2_xxs::kSubBlock; ++b) {
      const uint8_t* points = in + 2 + 8 * b;
      uint32_t codes;
      std::memcpy(&codes, points + 4, sizeof(codes));
      const float scale = d * (0.5f + static_cast<float>(codes >> 28)) * 0.25f;
      for (int g = 0; g < 4; ++g, out += iq2_xxs::kGroup) {
        const auto& values = tables.values[points[g]];
        const auto& signs = tables.sign_bits[(codes >> (7 * g)) & 127u];
        for (size_t i = 0; i < iq2_xxs::kGroup; ++i)
          out[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(scale * values[i]) ^ signs[i]);
      }
    }
  }
}

}  // namespace gramian
