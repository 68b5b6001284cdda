#include "kernels/norm/norm.h"

#include <memory>

#include "kernels/float16.h"

namespace gramian {
namespace {

constexpr int kParts = 16;
typedef float Parts __attribute__((vector_size(4 * kParts)));

#define GRAMIAN_BODY "kernels/norm/norm-inl.h"
#include "kernels/each_level.h"

}  // namespace

void norm_rows(CpuLevel level, const NormRows& norm, void* y) {
  const auto wide = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(norm.size));
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return avx512::run(norm, y, wide.get());
  if (level >= CpuLevel::avx2) return avx2::run(norm, y, wide.get());
#endif
  static_cast<void>(level);
  baseline::run(norm, y, wide.get());
}

}  // namespace gramian
