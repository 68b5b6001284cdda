#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/codecs/iq2_xxs.h"
#include "kernels/codecs/iq2_xxs_tables.h"
#include "kernels/codecs/rounding.h"

namespace gramian {
namespace iq2_xxs {
namespace {

constexpr int kScales = 16, kGroups = kSubBlock / kGroup, kPoints = 256, kLanes = 16;

// From the largest magnitude and the root mean square: heavier tails are clipped more.
float anchor(const float* x) noexcept {
  float largest = 0;
  double squares = 0;
  for (int i = 0; i < kBlock; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  if (largest == 0) return 0;
  const double root = std::sqrt(squares / kBlock);
  const double ratio = std::clamp(1 - 0.035 * static_cast<double>(largest) / root, 0.65, 0.92);
  return static_cast<float>(std::min(static_cast<double>(largest) / (43.0 * 31 / 8) * ratio, 65504.0));
}

// For one group and every scale code: the point with the smallest error, and that error.
struct Best {
  float error[kScales];
  uint8_t point[kScales];
};

// error = sum v m^2 - 2 s (dot - flip) + s^2 sum v g^2, where dot = sum v m g and flip, with an odd number of negative weights, is
// twice the smallest v m g: that weight gets the wrong sign.
// Points lie in the inner loops, so that these vectorize; a point's own sum runs over its weights in order.
void search(const Tables& tables, const float* m, const float* v, bool odd, float d, Best& best) noexcept {
  float dot[kPoints] = {}, norm[kPoints] = {}, least[kPoints], errors[kPoints];
  std::fill_n(least, kPoints, INFINITY);
  float energy = 0;
  for (size_t i = 0; i < kGroup; ++i) {
    const float vm = v[i] * m[i], weight = v[i];
    const float* g = tables.decoded[i].data();
    energy += vm * m[i];
    for (size_t p = 0; p < kPoints; ++p) {
      const float term = vm * g[p];
      dot[p] += term;
      norm[p] += weight * g[p] * g[p];
      least[p] = term < least[p] ? term : least[p];
    }
  }
  if (odd) {
    for (size_t p = 0; p < kPoints; ++p) dot[p] -= 2 * least[p];
  }
  for (int l = 0; l < kScales; ++l) {
    const float s = d * static_cast<float>(2 * l + 1) / 8, s2 = 2 * s, ss = s * s;
    for (size_t p = 0; p < kPoints; ++p) errors[p] = energy - s2 * dot[p] + ss * norm[p];
    float lanes[kLanes];
    std::copy_n(errors, kLanes, lanes);
    for (size_t p = kLanes; p < kPoints; p += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) lanes[j] = errors[p + j] < lanes[j] ? errors[p + j] : lanes[j];
    }
    best.error[l] = *std::min_element(lanes, lanes + kLanes);
    best.point[l] = static_cast<uint8_t>(std::find(errors, errors + kPoints - 1, best.error[l]) - errors);
  }
}

void encode_sub_block(const Tables& tables, const float* x, const float* importance, float d,
                      uint32_t* words) noexcept {
  Best best[kGroups];
  unsigned signs[kGroups];
  float m[kSubBlock], v[kSubBlock], total[kScales] = {};
  for (int i = 0; i < kSubBlock; ++i) {
    m[i] = std::fabs(x[i]);
    v[i] = importance == nullptr ? 1 : importance[i];
  }
  for (int g = 0; g < kGroups; ++g) {
    signs[g] = 0;
    for (int i = 0; i < kGroup; ++i) signs[g] |= static_cast<unsigned>(x[g * kGroup + i] < 0) << i;
    search(tables, m + g * kGroup, v + g * kGroup, __builtin_parity(signs[g]) != 0, d, best[g]);
    for (int l = 0; l < kScales; ++l) total[l] += best[g].error[l];
  }
  const auto scale = static_cast<size_t>(std::min_element(total, total + kScales) - total);
  words[0] = 0;
  words[1] = static_cast<uint32_t>(scale) << 28;
  for (int g = 0; g < kGroups; ++g) {
    const uint8_t point = best[g].point[scale];
    if (__builtin_parity(signs[g]) != 0) {
      const auto cost = [&](int i) {
        return v[g * kGroup + i] * m[g * kGroup + i] * kDecoded[tables.levels[point][static_cast<size_t>(i)]];
      };
      int cheapest = 0;
      for (int i = 1; i < kGroup; ++i) cheapest = cost(i) < cost(cheapest) ? i : cheapest;
      signs[g] ^= 1u << cheapest;
    }
    words[0] |= static_cast<uint32_t>(point) << (8 * g);
    words[1] |= static_cast<uint32_t>(signs[g] & 127u) << (7 * g);
  }
}

}  // namespace
}  // namespace iq2_xxs

void encode_iq2_xxs_anchored(CpuLevel, const float* x, int64_t n, const float* importance,
                             uint8_t* out) noexcept {
  using namespace iq2_xxs;
  const Tables& tables = iq2_xxs::tables();
  for (int64_t at = 0; at < n; at += kBlock, out += kBytes) {
    std::memset(out, 0, kBytes);
    store_half(out, anchor(x + at));
    const float d = load_half(out);
    if (d == 0) continue;
    uint32_t words[2 * kBlock / kSubBlock];
    for (int b = 0; b < kBlock / kSubBlock; ++b) {
      const int64_t first = at + b * kSubBlock;
      encode_sub_block(tables, x + first, importance == nullptr ? nullptr : importance + first, d,
                       words + 2 * b);
    }
    std::memcpy(out + 2, words, kBytes - 2);
  }
}

}  // namespace gramian
