// The search of encode_iq2_xxs(), as llama.cpp does it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/codecs/fit.h"
#include "kernels/codecs/iq2_xxs_tables.h"
#include "kernels/codecs/rounding.h"

namespace gramian::iq2_xxs {
namespace {

constexpr int kGroups = kSubBlock / kGroup;

// What is searched for in one sub-block.
struct SubBlock {
  float a[kSubBlock];     // magnitudes, of which one a group may be negative: see make_signs_even()
  float w[kSubBlock];     // weights
  float root[kSubBlock];  // their roots, which choose among neighbours
  unsigned signs[kGroups];
};

// Points and levels for all groups, and the sums that judge them.
struct Choice {
  int point[kGroups];
  float sum_xq, sum_qq;
};

// Signs of a group, an even number of them: where it is odd, the weight that costs least counts with the wrong sign.
void make_signs_even(const float* x, int group, SubBlock& sub) noexcept {
  const int first = group * kGroup;
  unsigned signs = 0;
  for (int i = 0; i < kGroup; ++i) {
    const bool negative = !(x[first + i] >= 0);
    sub.a[first + i] = std::fabs(x[first + i]);
    signs |= static_cast<unsigned>(negative) << i;
  }
  if (__builtin_parity(signs) != 0) {
    int cheapest = 0;
    float least = 0;
    for (int i = 0; i < kGroup; ++i) {
      const float cost = sub.w[first + i] * x[first + i] * x[first + i];
      if (i == 0 || cost < least) least = cost, cheapest = i;
    }
    sub.a[first + cheapest] = -sub.a[first + cheapest];
    signs ^= 1u << cheapest;
  }
  sub.signs[group] = signs & 127u;
}

int nearest_point(const Tables& tables, const float* a, const float* root, float inverse,
                  float scale) noexcept {
  int combination = 0;
  for (int i = kGroup - 1; i >= 0; --i)
    combination = combination * kLevels + clamped(nearest(0.5f * (inverse * a[i] - 1)), 0, kLevels - 1);
  if (tables.point[static_cast<size_t>(combination)] >= 0)
    return tables.point[static_cast<size_t>(combination)];
  const Neighbours list = tables.neighbours[static_cast<size_t>(combination)];
  int best = tables.points[list.first];
  float least = std::numeric_limits<float>::infinity();
  for (uint32_t n = list.first; n < list.first + list.count; ++n) {
    const auto& levels = tables.levels[tables.points[n]];
    float distance = 0;
    for (int i = 0; i < kGroup; ++i) {
      const float t = scale * static_cast<float>(2 * levels[static_cast<size_t>(i)] + 1) - a[i];
      distance += root[i] * t * t;
    }
    if (distance < least) least = distance, best = tables.points[n];
  }
  return best;
}

Choice choose(const Tables& tables, const SubBlock& sub, float inverse, float scale) noexcept {
  Choice choice{};
  for (int g = 0; g < kGroups; ++g) {
    choice.point[g] = nearest_point(tables, sub.a + g * kGroup, sub.root + g * kGroup, inverse, scale);
    for (int i = 0; i < kGroup; ++i) {
      const auto level = tables.levels[static_cast<size_t>(choice.point[g])][static_cast<size_t>(i)];
      const auto q = static_cast<float>(2 * level + 1);
      const int j = g * kGroup + i;
      choice.sum_xq += sub.w[j] * sub.a[j] * q;
      choice.sum_qq += sub.w[j] * q * q;
    }
  }
  return choice;
}

// The sub-block's two words without the scale's code; returns its scale, 0 for words of zeros.
float encode_sub_block(const Tables& tables, const float* x, const float* importance, float mean,
                       uint32_t* words) noexcept {
  SubBlock sub;
  for (int i = 0; i < kSubBlock; ++i) {
    sub.w[i] = importance[i] * std::sqrt(mean + x[i] * x[i]);
    sub.root[i] = std::sqrt(sub.w[i]);
  }
  for (int g = 0; g < kGroups; ++g) make_signs_even(x, g, sub);
  words[0] = words[1] = 0;
  if (*std::max_element(sub.a, sub.a + kSubBlock) < kZeroRun) return 0;
  uint8_t unused[kSubBlock];
  // Four levels are fitted though there are three.
  float scale = unsigned_fit(sub.a, sub.w, kSubBlock, 4, unused);
  const float largest = scale * 3;
  if (!(largest > 0)) return 0;

  Choice kept{};
  float best = 0;
  for (int step = -6; step <= 6; ++step) {
    const float inverse = (5 + static_cast<float>(step) * 0.1f) / largest;
    const Choice choice = choose(tables, sub, inverse, 1 / inverse);
    if (!(choice.sum_qq > 0 && choice.sum_xq * choice.sum_xq > best * choice.sum_qq)) continue;
    scale = choice.sum_xq / choice.sum_qq;
    best = scale * choice.sum_xq;
    kept = choice;
  }
  if (scale > 0) {
    kept = choose(tables, sub, 1 / scale, scale);
    if (kept.sum_qq > 0) scale = kept.sum_xq / kept.sum_qq;
  }
  if (scale < 0) {
    scale = -scale;
    for (unsigned& signs : sub.signs) signs = ~signs & 127u;
  }
  for (int g = 0; g < kGroups; ++g) {
    words[0] |= static_cast<uint32_t>(kept.point[g]) << (8 * g);
    words[1] |= static_cast<uint32_t>(sub.signs[g]) << (7 * g);
  }
  return scale;
}

}  // namespace

void encode_block_ref(const Tables& tables, const float* x, const float* importance, uint8_t* out) noexcept {
  float squares = 0;
  for (int i = 0; i < kBlock; ++i) squares += x[i] * x[i];
  const float mean = squares / kBlock;
  float scales[kBlock / kSubBlock];
  uint32_t words[2 * kBlock / kSubBlock];
  for (int b = 0; b < kBlock / kSubBlock; ++b) {
    scales[b] = encode_sub_block(tables, x + b * kSubBlock, importance + b * kSubBlock, mean, words + 2 * b);
  }
  store_block(scales, words, out);
}

}  // namespace gramian::iq2_xxs
