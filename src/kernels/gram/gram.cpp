#include "kernels/gram/gram.h"

#include <algorithm>
#include <cmath>

#include "kernels/float16.h"
#include "kernels/gram/gram_ref.h"
#include "kernels/wide_vectors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gramian::gram {
namespace {

using Unit [[gnu::may_alias]] = uint32_t;

#if defined(__x86_64__)
namespace avx2 {
#define GRAMIAN_TARGET [[gnu::target("avx2,fma")]]
typedef float Floats __attribute__((vector_size(32)));
constexpr int kLanes = 8, kTileRows = 4, kTilesTogether = 6;
constexpr bool kPairs = false;
GRAMIAN_TARGET inline Floats load(const Unit* units) {
  return _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(units)));
}
GRAMIAN_TARGET inline Floats broadcast(const Unit* unit) {
  return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(*unit)));
}
GRAMIAN_TARGET inline Floats multiply_add(Floats a, Floats b, Floats sum) {
  return _mm256_fmadd_ps(a, b, sum);
}
#include "kernels/gram/gram-inl.h"
#undef GRAMIAN_TARGET
}  // namespace avx2

#define GRAMIAN_AVX512 "avx512f,avx512bw,avx512dq,avx512vl" GRAMIAN_WIDE_VECTORS
typedef float Floats512 __attribute__((vector_size(64)));
[[gnu::target(GRAMIAN_AVX512)]] inline Floats512 load512(const Unit* units) {
  return _mm512_castsi512_ps(_mm512_load_si512(units));
}
[[gnu::target(GRAMIAN_AVX512)]] inline Floats512 broadcast512(const Unit* unit) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*unit)));
}
namespace avx512 {
#define GRAMIAN_TARGET [[gnu::target(GRAMIAN_AVX512)]]
using Floats = Floats512;
constexpr int kLanes = 16, kTileRows = 8, kTilesTogether = 1;
constexpr bool kPairs = false;
GRAMIAN_TARGET inline Floats load(const Unit* units) { return load512(units); }
GRAMIAN_TARGET inline Floats broadcast(const Unit* unit) { return broadcast512(unit); }
GRAMIAN_TARGET inline Floats multiply_add(Floats a, Floats b, Floats sum) {
  return _mm512_fmadd_ps(a, b, sum);
}
#include "kernels/gram/gram-inl.h"
#undef GRAMIAN_TARGET
}  // namespace avx512
namespace avx512_bf16 {
#define GRAMIAN_TARGET [[gnu::target(GRAMIAN_AVX512 ",avx512bf16")]]
using Floats = Floats512;
constexpr int kLanes = 16, kTileRows = 8, kTilesTogether = 1;
constexpr bool kPairs = true;
GRAMIAN_TARGET inline Floats load(const Unit* units) { return load512(units); }
GRAMIAN_TARGET inline Floats broadcast(const Unit* unit) { return broadcast512(unit); }
GRAMIAN_TARGET inline Floats multiply_add(Floats a, Floats b, Floats sum) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
#include "kernels/gram/gram-inl.h"
#undef GRAMIAN_TARGET
}  // namespace avx512_bf16
#endif

struct Functions {
  decltype(&reference::add_lower) lower;
  decltype(&reference::add_blocks) blocks;
};

Functions functions(CpuLevel level, DType type) {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512_bf16 && type == DType::bf16)
    return {avx512_bf16::add_lower, avx512_bf16::add_blocks};
  if (level >= CpuLevel::avx512) return {avx512::add_lower, avx512::add_blocks};
  if (level >= CpuLevel::avx2) return {avx2::add_lower, avx2::add_blocks};
#else
  static_cast<void>(level);
  static_cast<void>(type);
#endif
  return {reference::add_lower, reference::add_blocks};
}

}  // namespace

void add_lower(CpuLevel level, const Rows& x, int64_t begin, int64_t end, float* h, int64_t h_stride,
               Workspace& workspace) noexcept {
  functions(level, x.type).lower(x, begin, end, h, h_stride, workspace);
}

int64_t part_begin(int64_t columns, int64_t parts, int64_t part) noexcept {
  if (part >= parts) return columns;
  // Rows before i hold about i² / 2 entries.
  const double row =
      static_cast<double>(columns) * std::sqrt(static_cast<double>(part) / static_cast<double>(parts));
  const int64_t begin = std::lround(row / kPanel) * kPanel;
  return begin < columns ? begin : columns;
}

void scale_and_mirror(float* h, int64_t columns, int64_t h_stride, float factor) noexcept {
  constexpr int64_t kSquare =
      32;  // read by rows, written by columns: its 2 x 32 lines stay in the cache (L1)
  for (int64_t top = 0; top < columns; top += kSquare) {
    for (int64_t left = 0; left <= top; left += kSquare) {
      const int64_t bottom = std::min(top + kSquare, columns), right = std::min(left + kSquare, columns);
      for (int64_t i = top; i < bottom; ++i) {
        for (int64_t j = left; j < std::min(right, i + 1); ++j) h[i * h_stride + j] *= factor;
      }
      for (int64_t j = left; j < right; ++j) {
        for (int64_t i = std::max(top, j + 1); i < bottom; ++i) h[j * h_stride + i] = h[i * h_stride + j];
      }
    }
  }
}

void add_blocks(CpuLevel level, const Rows& x, int64_t begin, int64_t end, float* blocks,
                Workspace& workspace) noexcept {
  functions(level, x.type).blocks(x, begin, end, blocks, workspace);
}

}  // namespace gramian::gram
