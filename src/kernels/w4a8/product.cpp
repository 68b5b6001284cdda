#include "kernels/w4a8/product.h"

#include <algorithm>
#include <cmath>

#include "kernels/float16.h"
#include "kernels/w4a8/product_ref.h"
#include "kernels/wide_vectors.h"

#if defined(__x86_64__)
// g++ 12 takes the undefined operands in its own header for ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#endif

namespace gramian::w4a8 {
namespace {

#if defined(__x86_64__)

// Sums of 8 bits are modulo 2^32, like all of a level's: only the end must fit.
#define GRAMIAN_ROW_SUM                                                              \
  GRAMIAN_TARGET inline int32_t row_sum(const int8_t* q, int64_t k) {                \
    int32_t sum = 0;                                                                 \
    for (int64_t i = 0; i < k; ++i) sum += q[i];                                     \
    return sum;                                                                      \
  }                                                                                  \
  inline int32_t correction(int32_t sum) {                                           \
    return static_cast<int32_t>(uint32_t{0} - kOffset * static_cast<uint32_t>(sum)); \
  }

// int8 pairs as int16: pmaddubsw would saturate.
#define GRAMIAN_INT16_QUANTS                                                         \
  inline void put_quants(uint8_t* to, int64_t held, uint32_t four) {                 \
    const auto pair = [&](int low, int high) {                                       \
      const auto byte = [&](int i) { return static_cast<int8_t>(four >> (8 * i)); }; \
      return static_cast<uint32_t>(static_cast<uint16_t>(byte(low))) |               \
             static_cast<uint32_t>(static_cast<uint16_t>(byte(high))) << 16;         \
    };                                                                               \
    const uint32_t even = pair(0, 2), odd = pair(1, 3);                              \
    __builtin_memcpy(to, &even, 4);                                                  \
    __builtin_memcpy(to + 4 * held, &odd, 4);                                        \
  }

namespace avx2 {
#define GRAMIAN_TARGET [[gnu::target("avx2,fma,f16c")]]
constexpr int kBytes = 32, kUnit = 2, kHeldRows = 6;
constexpr uint32_t kOffset = 0;
using Bytes = __m256i;
using Floats = __m256;
struct Quants {
  Bytes even, odd;
};
GRAMIAN_TARGET inline Bytes load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
GRAMIAN_TARGET inline void store(void* to, Bytes x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
GRAMIAN_TARGET inline Bytes broadcast16(const void* from) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
GRAMIAN_TARGET inline Bytes spread(int32_t x) { return _mm256_set1_epi32(x); }
GRAMIAN_TARGET inline Bytes broadcast4(const void* from) {
  int32_t x = 0;
  __builtin_memcpy(&x, from, 4);
  return _mm256_set1_epi32(x);
}
GRAMIAN_TARGET inline Bytes zero() { return _mm256_setzero_si256(); }
GRAMIAN_TARGET inline Bytes add(Bytes a, Bytes b) { return _mm256_add_epi32(a, b); }
GRAMIAN_TARGET inline Bytes low_codes(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
GRAMIAN_TARGET inline Bytes high_codes(Bytes x) {
  return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
}
GRAMIAN_TARGET inline Bytes look_up(Bytes table, Bytes codes) { return _mm256_shuffle_epi8(table, codes); }
GRAMIAN_TARGET inline Bytes unpack32_low(Bytes a, Bytes b) { return _mm256_unpacklo_epi32(a, b); }
GRAMIAN_TARGET inline Bytes unpack32_high(Bytes a, Bytes b) { return _mm256_unpackhi_epi32(a, b); }
GRAMIAN_TARGET inline Bytes unpack64_low(Bytes a, Bytes b) { return _mm256_unpacklo_epi64(a, b); }
GRAMIAN_TARGET inline Bytes unpack64_high(Bytes a, Bytes b) { return _mm256_unpackhi_epi64(a, b); }
GRAMIAN_TARGET inline Floats whole_row_ratio() { return _mm256_set1_ps(16.0f); }
GRAMIAN_TARGET inline Floats ratios(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
template <int kEntry>
GRAMIAN_TARGET inline Floats lane_entry(Floats x) {
  return _mm256_permute_ps(x, kEntry * 0x55);
}
GRAMIAN_TARGET inline Bytes four_values(Floats ratio, float code) {
  const __m128 codes = _mm_setr_ps(code, code + 1, code + 2, code + 3);
  return _mm256_cvtps_epi32(_mm256_mul_ps(ratio, _mm256_set_m128(codes, codes)));
}
GRAMIAN_TARGET inline Bytes values(Floats ratio) {
  return _mm256_packs_epi16(_mm256_packs_epi32(four_values(ratio, -8), four_values(ratio, -4)),
                            _mm256_packs_epi32(four_values(ratio, 0), four_values(ratio, 4)));
}
GRAMIAN_TARGET inline Bytes even_bytes(Bytes x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
GRAMIAN_TARGET inline Bytes odd_bytes(Bytes x) { return _mm256_srai_epi16(x, 8); }
GRAMIAN_TARGET inline Quants quants(Bytes q) { return {even_bytes(q), odd_bytes(q)}; }
GRAMIAN_TARGET inline Bytes multiply_add(Bytes sum, Bytes weights, Bytes q) {
  return add(sum, _mm256_madd_epi16(weights, q));
}
GRAMIAN_TARGET inline Bytes add_products(Bytes sum, Bytes weights, Quants q) {
  return multiply_add(multiply_add(sum, even_bytes(weights), q.even), odd_bytes(weights), q.odd);
}
GRAMIAN_TARGET inline void put_weights(uint8_t* to, Bytes x) {
  store(to, even_bytes(x));
  store(to + 2 * kBytes, odd_bytes(x));
}
GRAMIAN_INT16_QUANTS
GRAMIAN_ROW_SUM
#include "kernels/w4a8/product-inl.h"
#undef GRAMIAN_TARGET
}  // namespace avx2

#define GRAMIAN_AVX512 "avx512f,avx512bw,avx512dq,avx512vl" GRAMIAN_WIDE_VECTORS
namespace wide {
#define GRAMIAN_TARGET [[gnu::target(GRAMIAN_AVX512)]]
constexpr int kBytes = 64, kHeldRows = 12;
using Bytes = __m512i;
using Floats = __m512;
GRAMIAN_TARGET inline Bytes load(const void* from) { return _mm512_loadu_si512(from); }
GRAMIAN_TARGET inline void store(void* to, Bytes x) { _mm512_storeu_si512(to, x); }
GRAMIAN_TARGET inline Bytes broadcast16(const void* from) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
GRAMIAN_TARGET inline Bytes spread(int32_t x) { return _mm512_set1_epi32(x); }
GRAMIAN_TARGET inline Bytes broadcast4(const void* from) {
  int32_t x = 0;
  __builtin_memcpy(&x, from, 4);
  return _mm512_set1_epi32(x);
}
GRAMIAN_TARGET inline Bytes zero() { return _mm512_setzero_si512(); }
GRAMIAN_TARGET inline Bytes add(Bytes a, Bytes b) { return _mm512_add_epi32(a, b); }
GRAMIAN_TARGET inline Bytes low_codes(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
GRAMIAN_TARGET inline Bytes high_codes(Bytes x) {
  return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
}
GRAMIAN_TARGET inline Bytes look_up(Bytes table, Bytes codes) { return _mm512_shuffle_epi8(table, codes); }
GRAMIAN_TARGET inline Bytes unpack32_low(Bytes a, Bytes b) { return _mm512_unpacklo_epi32(a, b); }
GRAMIAN_TARGET inline Bytes unpack32_high(Bytes a, Bytes b) { return _mm512_unpackhi_epi32(a, b); }
GRAMIAN_TARGET inline Bytes unpack64_low(Bytes a, Bytes b) { return _mm512_unpacklo_epi64(a, b); }
GRAMIAN_TARGET inline Bytes unpack64_high(Bytes a, Bytes b) { return _mm512_unpackhi_epi64(a, b); }
GRAMIAN_TARGET inline Floats whole_row_ratio() { return _mm512_set1_ps(16.0f); }
GRAMIAN_TARGET inline Floats ratios(const uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
template <int kEntry>
GRAMIAN_TARGET inline Floats lane_entry(Floats x) {
  return _mm512_permute_ps(x, kEntry * 0x55);
}
// rne(code · ratio + offset) of 4 codes from `code` on. Below 2^17 the sum has bits enough: it rounds like the product.
GRAMIAN_TARGET inline Bytes four_values(Floats ratio, float code, float offset) {
  const Floats codes = _mm512_broadcast_f32x4(_mm_setr_ps(code, code + 1, code + 2, code + 3));
  return _mm512_cvtps_epi32(_mm512_fmadd_ps(ratio, codes, _mm512_set1_ps(offset)));
}
}  // namespace wide

namespace avx512 {
using namespace wide;
constexpr int kUnit = 2;
constexpr uint32_t kOffset = 0;
struct Quants {
  Bytes even, odd;
};
GRAMIAN_TARGET inline Bytes values(Floats ratio) {
  return _mm512_packs_epi16(_mm512_packs_epi32(four_values(ratio, -8, 0), four_values(ratio, -4, 0)),
                            _mm512_packs_epi32(four_values(ratio, 0, 0), four_values(ratio, 4, 0)));
}
GRAMIAN_TARGET inline Bytes even_bytes(Bytes x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
GRAMIAN_TARGET inline Bytes odd_bytes(Bytes x) { return _mm512_srai_epi16(x, 8); }
GRAMIAN_TARGET inline Quants quants(Bytes q) { return {even_bytes(q), odd_bytes(q)}; }
GRAMIAN_TARGET inline Bytes multiply_add(Bytes sum, Bytes weights, Bytes q) {
  return add(sum, _mm512_madd_epi16(weights, q));
}
GRAMIAN_TARGET inline Bytes add_products(Bytes sum, Bytes weights, Quants q) {
  return multiply_add(multiply_add(sum, even_bytes(weights), q.even), odd_bytes(weights), q.odd);
}
GRAMIAN_TARGET inline void put_weights(uint8_t* to, Bytes x) {
  store(to, even_bytes(x));
  store(to + 2 * kBytes, odd_bytes(x));
}
GRAMIAN_INT16_QUANTS
GRAMIAN_ROW_SUM
#include "kernels/w4a8/product-inl.h"
#undef GRAMIAN_TARGET
}  // namespace avx512

namespace avx512_vnni {
#define GRAMIAN_TARGET [[gnu::target(GRAMIAN_AVX512 ",avx512vnni")]]
using namespace wide;
constexpr int kUnit = 1;
constexpr uint32_t kOffset = 128;
using Quants = Bytes;
GRAMIAN_TARGET inline Bytes values(Floats ratio) {
  return _mm512_packus_epi16(_mm512_packs_epi32(four_values(ratio, -8, 128), four_values(ratio, -4, 128)),
                             _mm512_packs_epi32(four_values(ratio, 0, 128), four_values(ratio, 4, 128)));
}
GRAMIAN_TARGET inline Quants quants(Bytes q) { return q; }
// Sums wrap around 2^32 (the offset may carry them over); the end fits.
GRAMIAN_TARGET inline Bytes multiply_add(Bytes sum, Bytes weights, Bytes q) {
  return _mm512_dpbusd_epi32(sum, weights, q);
}
GRAMIAN_TARGET inline Bytes add_products(Bytes sum, Bytes weights, Quants q) {
  return multiply_add(sum, weights, q);
}
GRAMIAN_TARGET inline void put_weights(uint8_t* to, Bytes x) { store(to, x); }
inline void put_quants(uint8_t* to, int64_t, uint32_t four) { __builtin_memcpy(to, &four, 4); }
GRAMIAN_ROW_SUM
#include "kernels/w4a8/product-inl.h"
#undef GRAMIAN_TARGET
}  // namespace avx512_vnni

#endif

// The reference keeps rows as they are.
namespace plain {
constexpr int kUnit = 1;
void arrange_rows(const int8_t* q, int64_t rows, int64_t k, uint8_t* operand, int32_t* sums) {
  for (int64_t m = 0; m < rows; ++m) sums[m] = 0;
  __builtin_memcpy(operand, q, static_cast<size_t>(rows * k));
}
void multiply_few(const Weights& weights, int64_t first, int64_t count, const int8_t* q, int64_t rows,
                  int32_t* acc) {
  reference::multiply(weights, first, count, q, rows, acc);
}
void multiply_many(const Weights& weights, int64_t first, const uint8_t* operand, const int32_t*,
                   int64_t rows, int32_t* acc) {
  reference::multiply(weights, first, kManyChannels, reinterpret_cast<const int8_t*>(operand), rows, acc);
}
}  // namespace plain

struct Functions {
  decltype(&plain::multiply_few) few;
  decltype(&plain::arrange_rows) arrange;
  decltype(&plain::multiply_many) many;
  int unit;
};

Functions functions(CpuLevel level) {
#if defined(__x86_64__)
#define GRAMIAN_LEVEL(space)                                                     \
  {                                                                              \
    space::multiply_few, space::arrange_rows, space::multiply_many, space::kUnit \
  }
  if (level >= CpuLevel::avx512_vnni) return GRAMIAN_LEVEL(avx512_vnni);
  if (level >= CpuLevel::avx512) return GRAMIAN_LEVEL(avx512);
  if (level >= CpuLevel::avx2) return GRAMIAN_LEVEL(avx2);
#undef GRAMIAN_LEVEL
#else
  static_cast<void>(level);
#endif
  return {plain::multiply_few, plain::arrange_rows, plain::multiply_many, plain::kUnit};
}

// 256 bytes of 16 channels and 32 inputs, `codes` being those of the first.
void pack_step(const int8_t* codes, int64_t k, uint8_t* to) {
  for (int64_t channel = 0; channel < kPanel; ++channel) {
    const int8_t* row = codes + channel * k;
    uint8_t* lane = to + channel % 4 * 64 + channel / 4 * 16;
    for (int b = 0; b < 16; ++b) lane[b] = static_cast<uint8_t>((row[b] + 8) | (row[16 + b] + 8) << 4);
  }
}

bool same_values(float ratio, float stored) {
  for (int code = -8; code < 8; ++code) {
    const auto value = [&](float of) { return std::nearbyint(static_cast<float>(code) * of); };
    const float exact = value(ratio), found = value(stored);
    const bool both_low = exact <= -128.0f && found <= -128.0f,
               both_high = exact >= 127.0f && found >= 127.0f;
    if (!(exact == found || both_low || both_high)) return false;
  }
  return true;
}

}  // namespace

void pack_codes(const int8_t* codes, int64_t channels, int64_t k, uint8_t* to) noexcept {
  for (int64_t panel = 0; panel < channels / kPanel; ++panel) {
    for (int64_t i = 0; i < k; i += 32, to += 256) pack_step(codes + panel * kPanel * k + i, k, to);
  }
}

bool pack_ratios(const float* ratios, int64_t channels, int64_t k, uint16_t* to) noexcept {
  constexpr float kLargest = 65504.0f;  // of f16; every code but 0 is clamped long before
  bool same = true;
  for (int64_t panel = 0; panel < channels / kPanel; ++panel) {
    for (int64_t group = 0; group < k / kGroup; ++group) {
      for (int64_t n = 0; n < kPanel; ++n) {
        const float ratio = ratios[group * channels + panel * kPanel + n];
        *to = f16_from_f32(std::clamp(ratio, -kLargest, kLargest));
        const float stored = f16_to_f32(*to++);
        same = same && (stored == ratio || same_values(ratio, stored));
      }
    }
  }
  return same;
}

void multiply_few(CpuLevel level, const Weights& weights, int64_t first, int64_t count, const int8_t* q,
                  int64_t rows, int32_t* acc) noexcept {
  functions(level).few(weights, first, count, q, rows, acc);
}

int64_t operand_stride(CpuLevel level, int64_t k) noexcept { return k * functions(level).unit; }

int64_t operand_bytes(CpuLevel level, int64_t rows, int64_t k) noexcept {
  return (rows + 3) / 4 * 4 * operand_stride(level, k);
}

void arrange_rows(CpuLevel level, const int8_t* q, int64_t rows, int64_t k, uint8_t* operand,
                  int32_t* sums) noexcept {
  functions(level).arrange(q, rows, k, operand, sums);
}

void multiply_many(CpuLevel level, const Weights& weights, int64_t first, const uint8_t* operand,
                   const int32_t* sums, int64_t rows, int32_t* acc) noexcept {
  functions(level).many(weights, first, operand, sums, rows, acc);
}

}  // namespace gramian::w4a8
