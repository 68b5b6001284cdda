#include "kernels/solve/descent.h"

#include <algorithm>
#include <cmath>

namespace gramian {
namespace {

#define GRAMIAN_BODY "kernels/solve/descent-inl.h"
#include "kernels/each_level.h"

}  // namespace

int64_t descend(const DescentBlock& block, CpuLevel level) noexcept {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return avx512::visit(block);
  if (level >= CpuLevel::avx2) return avx2::visit(block);
#endif
  static_cast<void>(level);
  return baseline::visit(block);
}

int64_t descend_reference(const DescentBlock& block) noexcept {
  int64_t changed = 0;
  for (int64_t r = 0; r < kBlockRows; ++r) {
    for (int64_t j = 0; j < block.columns; ++j) {
      const float* h = block.hessian + j * kBlockColumns;
      float& step = block.step[j * kBlockRows + r] = 0;
      if (!(h[j] > 0)) continue;
      // Steps of even and of odd columns are summed apart.
      float gradient[2] = {block.gradient[j * kBlockRows + r], 0};
      for (int64_t i = 0; i < j; ++i) gradient[i % 2] -= block.step[i * kBlockRows + r] * h[i];
      const int64_t at = block.group[j] * kBlockRows + r;
      const auto weight = [&](float code) {
        return block.ratio == nullptr ? code * block.scale[at]
                                      : std::nearbyint(code * block.ratio[at]) * block.channel[r];
      };
      const auto inside = [&](float code) { return std::clamp(code, block.least[at], block.most[at]); };
      float& code = block.codes[j * kBlockRows + r];
      const float old = weight(code), target = old + (gradient[0] + gradient[1]) / h[j];
      const float nearest = std::nearbyint(inside(target / block.scale[at]));
      float best = nearest;
      if (block.ratio != nullptr) {
        for (const float other : {inside(nearest - 1), inside(nearest + 1)}) {
          const float off = target - weight(best), off_other = target - weight(other);
          if (off_other * off_other < off * off) best = other;
        }
      }
      changed += best != code;
      step = weight(best) - old;
      code = best;
    }
  }
  return changed;
}

}  // namespace gramian
