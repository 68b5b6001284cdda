#include "kernels/nvfp4/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/small_floats.h"

namespace gramian::nvfp4 {
namespace {

constexpr int kLanesMax = 16, kSmallestScale = 1;

#define GRAMIAN_BODY "kernels/nvfp4/search-inl.h"
#include "kernels/each_level.h"

using BlockErrors = void (*)(const float* x, const float* root, const float* scales, const float* limits,
                             float* totals);

struct Level {
  int lanes;
  BlockErrors errors;
};

Level choose(CpuLevel level) {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return {16, &avx512::block_errors};
  if (level >= CpuLevel::avx2) return {8, &avx2::block_errors};
#endif
  (void)level;
  return {4, &baseline::block_errors};
}

float largest_magnitude(const float* x) noexcept {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

// The code of the scale with which `magnitude` is the largest value.
uint8_t scale_for(float magnitude, float factor) noexcept {
  return std::max<uint8_t>(e4m3_from_f32(magnitude / (6 * factor)), kSmallestScale);
}

float scale_value(int code, float factor) noexcept { return kE4m3[static_cast<size_t>(code)] * factor; }

// The nearest of E2M1's values to a, |a| any: half to even.
float round_to_e2m1(float a) noexcept {
  const float size = std::fabs(a);
  const float step = size < 2 ? 0.5f : size < 4 ? 1 : 2;
  return std::copysign(std::min(std::nearbyint(size / step) * step, kE2m1Most), a);
}

// Blocks of some rows in the lanes, with the best scale of each so far.
struct Search {
  Level level;
  float factor;
  const float* root;
  float x[kBlock * kLanesMax] = {};
  float best[kLanesMax];
  int code[kLanesMax];

  // Tries a candidate for each lane; those outside of the scales are left out.
  void attempt(const int* tried) {
    float scales[kLanesMax], limits[kLanesMax], totals[kLanesMax];
    bool any = false;
    for (int lane = 0; lane < level.lanes; ++lane) {
      const bool sound = tried[lane] >= kSmallestScale && tried[lane] <= kLargestScale;
      scales[lane] = sound ? scale_value(tried[lane], factor) : 1;
      limits[lane] = sound ? best[lane] : -1;
      any |= sound;
    }
    if (!any) return;
    level.errors(x, root, scales, limits, totals);
    for (int lane = 0; lane < level.lanes; ++lane) {
      if (limits[lane] < 0) continue;
      const bool better =
          totals[lane] < best[lane] || (totals[lane] == best[lane] && tried[lane] < code[lane]);
      if (!better) continue;
      best[lane] = totals[lane];
      code[lane] = tried[lane];
    }
  }
};

}  // namespace

float global_scale(float largest) noexcept { return largest == 0 ? 1 : std::min(kRange / largest, 0x1p100f); }

float factor_of(float global_scale) noexcept { return 1 / global_scale; }

uint8_t largest_magnitude_scale(const float* x, float factor) noexcept {
  const float largest = largest_magnitude(x);
  return largest == 0 ? kUnitScale : scale_for(largest, factor);
}

void search_scales(CpuLevel level, const Blocks& blocks, float factor, const Candidates& candidates,
                   uint8_t* scale, int64_t scale_stride) noexcept {
  Search search{choose(level), factor, blocks.root, {}, {}, {}};
  const int lanes = search.level.lanes;
  for (int64_t row = 0; row < blocks.rows; row += lanes) {
    const int count = static_cast<int>(std::min<int64_t>(lanes, blocks.rows - row));
    float largest[kLanesMax] = {};
    int tried[kLanesMax];
    for (int lane = 0; lane < lanes; ++lane) {
      const float* values = blocks.x + (row + std::min(lane, count - 1)) * blocks.stride;
      for (int k = 0; k < kBlock; ++k) search.x[k * lanes + lane] = values[k];
      largest[lane] = largest_magnitude(values);
      search.best[lane] = std::numeric_limits<float>::infinity();
      search.code[lane] = kLargestScale + 1;
    }
    if (candidates.all) {
      // From the scale of the largest magnitude outwards: the best is met early, and far ones are given up soon.
      int centre[kLanesMax];
      for (int lane = 0; lane < lanes; ++lane) centre[lane] = scale_for(largest[lane], factor);
      for (int offset = 0; offset < kLargestScale; ++offset) {
        for (const int sign : {1, -1}) {
          if (offset == 0 && sign < 0) continue;
          for (int lane = 0; lane < lanes; ++lane) tried[lane] = centre[lane] + sign * offset;
          search.attempt(tried);
        }
      }
    } else {
      for (const float multiple : candidates.multiples) {
        for (int lane = 0; lane < lanes; ++lane) tried[lane] = scale_for(largest[lane] * multiple, factor);
        search.attempt(tried);
      }
    }
    for (int lane = 0; lane < count; ++lane)
      scale[(row + lane) * scale_stride] =
          largest[lane] == 0 ? kUnitScale : static_cast<uint8_t>(search.code[lane]);
  }
}

float block_error(const float* x, const float* root, float scale) noexcept {
  float d[kBlock], total = 0;
  for (int k = kBlock - 1; k >= 0; --k) {
    d[k] = x[k] - round_to_e2m1(x[k] / scale) * scale;
    float term = d[k];
    if (root != nullptr) {
      term *= root[k * kBlock + k];
      for (int i = k + 1; i < kBlock; ++i) term += d[i] * root[k * kBlock + i];
    }
    total += term * term;
  }
  return total;
}

void upper_root(const float* hessian, float* root) noexcept {
  constexpr double kVanishing = 1e-6;
  double r[kBlock][kBlock] = {};
  for (int k = 0; k < kBlock; ++k) {
    const double diagonal = static_cast<double>(hessian[k * kBlock + k]);
    double pivot = diagonal;
    for (int j = 0; j < k; ++j) pivot -= r[j][k] * r[j][k];
    if (!(pivot > kVanishing * diagonal)) continue;
    r[k][k] = std::sqrt(pivot);
    for (int i = k + 1; i < kBlock; ++i) {
      double rest = static_cast<double>(hessian[k * kBlock + i]);
      for (int j = 0; j < k; ++j) rest -= r[j][k] * r[j][i];
      r[k][i] = rest / r[k][k];
    }
  }
  for (int k = 0; k < kBlock; ++k) {
    for (int i = 0; i < kBlock; ++i) root[k * kBlock + i] = static_cast<float>(r[k][i]);
  }
}

void quantize(const float* x, uint8_t scale, float factor, uint8_t* codes) noexcept {
  const float s = scale_value(scale, factor);
  for (int i = 0; i < kBlock; ++i)
    codes[i] = static_cast<uint8_t>(e2m1_from_f32(std::fabs(x[i] / s)) | (x[i] < 0 ? 8 : 0));
}

float value(uint8_t code, uint8_t scale, float factor) noexcept {
  return kE2m1[code & 15u] * scale_value(scale, factor);
}

}  // namespace gramian::nvfp4
