#include "kernels/solve/product.h"

namespace gramian {
namespace {

#define GRAMIAN_BODY "kernels/solve/product-inl.h"
#include "kernels/each_level.h"

}  // namespace

void subtract_product(const StepProduct& product, CpuLevel level) noexcept {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return avx512::subtract(product);
  if (level >= CpuLevel::avx2) return avx2::subtract(product);
#endif
  static_cast<void>(level);
  baseline::subtract(product);
}

}  // namespace gramian
