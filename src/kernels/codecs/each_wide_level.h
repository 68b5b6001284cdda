// Compiles a body for eight and for sixteen floats at a time. A source includes <immintrin.h> and kernels/wide_vectors.h, defines GRAMIAN_BODY, the quoted name of
// an -inl.h file, and includes this file inside its anonymous namespace: the body's functions then stand in the namespaces `avx2`
// and `avx512` (x86-64 alone has them). The body sees
//   GRAMIAN_TARGET  attribute naming the instruction set, for functions that are called from elsewhere
//   GRAMIAN_INLINE  for the others: vectors are not passed between functions
//   kLanes, Floats, Ints  vectors of f32 and i32, and the functions below on them; none fuses a multiply with an addition
// and includes nothing itself. No include guard: the repetition is the purpose.

#if defined(__x86_64__)
namespace avx2 {
#define GRAMIAN_TARGET [[gnu::target("avx2")]]
#define GRAMIAN_INLINE [[gnu::target("avx2"), gnu::always_inline]] inline
constexpr int kLanes = 8;
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
GRAMIAN_INLINE Floats all(float value) noexcept { return _mm256_set1_ps(value); }
GRAMIAN_INLINE Floats root(Floats value) noexcept { return _mm256_sqrt_ps(value); }
GRAMIAN_INLINE bool any(Ints mask) noexcept {
  return _mm256_movemask_ps(reinterpret_cast<Floats>(mask)) != 0;
}
GRAMIAN_INLINE Ints at_most(Ints value, int limit) noexcept {
  return reinterpret_cast<Ints>(_mm256_min_epi32(reinterpret_cast<__m256i>(value), _mm256_set1_epi32(limit)));
}
GRAMIAN_INLINE Ints at_least(Ints value, int limit) noexcept {
  return reinterpret_cast<Ints>(_mm256_max_epi32(reinterpret_cast<__m256i>(value), _mm256_set1_epi32(limit)));
}
#include "kernels/codecs/lanes-inl.h"
#include GRAMIAN_BODY
#undef GRAMIAN_TARGET
#undef GRAMIAN_INLINE
}  // namespace avx2
namespace avx512 {
#define GRAMIAN_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl" GRAMIAN_WIDE_VECTORS)]]
#define GRAMIAN_INLINE \
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl" GRAMIAN_WIDE_VECTORS), gnu::always_inline]] inline
constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
GRAMIAN_INLINE Floats all(float value) noexcept { return _mm512_set1_ps(value); }
GRAMIAN_INLINE Floats root(Floats value) noexcept { return _mm512_sqrt_ps(value); }
GRAMIAN_INLINE bool any(Ints mask) noexcept {
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask)) != 0;
}
GRAMIAN_INLINE Ints at_most(Ints value, int limit) noexcept {
  return reinterpret_cast<Ints>(_mm512_min_epi32(reinterpret_cast<__m512i>(value), _mm512_set1_epi32(limit)));
}
GRAMIAN_INLINE Ints at_least(Ints value, int limit) noexcept {
  return reinterpret_cast<Ints>(_mm512_max_epi32(reinterpret_cast<__m512i>(value), _mm512_set1_epi32(limit)));
}
#include "kernels/codecs/lanes-inl.h"
#include GRAMIAN_BODY
#undef GRAMIAN_TARGET
#undef GRAMIAN_INLINE
}  // namespace avx512
#endif
#undef GRAMIAN_BODY
