// encode_iq2_xxs() with one block or two at a time.
#include "kernels/codecs/iq2_xxs_tables.h"
#include "kernels/wide_vectors.h"

#if defined(__x86_64__)
#include <immintrin.h>

// g++ 12 warns of registers that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include "kernels/codecs/fit.h"
#endif

namespace gramian::iq2_xxs {
#if defined(__x86_64__)
namespace {

#include "kernels/codecs/iq2_xxs_nearest-inl.h"
#define GRAMIAN_BODY "kernels/codecs/iq2_xxs-inl.h"
#include "kernels/codecs/each_wide_level.h"

template <int kAtOnce, class Encode>
void encode_row(const Encode& encode, const float* x, int64_t n, const float* importance, uint8_t* out) {
  for (int64_t at = 0; at < n; at += kAtOnce * kBlock, out += kAtOnce * kBytes) {
    const int64_t left = (n - at) / kBlock;
    encode(tables(), x + at, importance + at, left < kAtOnce ? static_cast<int>(left) : kAtOnce, out);
  }
}

}  // namespace

void encode_row_lanes(CpuLevel level, const float* x, int64_t n, const float* importance,
                      uint8_t* out) noexcept {
  if (level >= CpuLevel::avx512) {
    encode_row<avx512::kBlocks>(avx512::encode, x, n, importance, out);
  } else {
    encode_row<avx2::kBlocks>(avx2::encode, x, n, importance, out);
  }
}
#else
void encode_row_lanes(CpuLevel, const float*, int64_t, const float*, uint8_t*) noexcept {}
#endif

}  // namespace gramian::iq2_xxs
