#include "kernels/rope/rope.h"

#include "kernels/float16.h"

namespace gramian {
namespace {

#define GRAMIAN_BODY "kernels/rope/rope-inl.h"
#include "kernels/each_level.h"

}  // namespace

void rope_rows(CpuLevel level, const RopeRows& rope, void* y) noexcept {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return avx512::run(rope, y);
  if (level >= CpuLevel::avx2) return avx2::run(rope, y);
#endif
  static_cast<void>(level);
  baseline::run(rope, y);
}

}  // namespace gramian
