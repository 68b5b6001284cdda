// Compiles a body that fuses multiply-adds once per x86-64 level with such instructions (each_level.h is for bodies that do not,
// and give the same bits at every level). A source includes <immintrin.h> and kernels/wide_vectors.h, defines GRAMIAN_BODY, the quoted
// name of an -inl.h file, and includes this file inside its anonymous namespace: the body's functions then stand in the namespaces
// `avx2` and `avx512`. The body sees
//   GRAMIAN_TARGET  attribute naming the instruction set, for every function
//   kLanes, Floats  a vector of f32
//   broadcast, multiply_add  on Floats
// and includes nothing itself. No include guard: the repetition is the purpose.

#if defined(__x86_64__)
namespace avx2 {
#define GRAMIAN_TARGET [[gnu::target("avx2,fma")]]
typedef float Floats __attribute__((vector_size(32)));
constexpr int kLanes = 8;
GRAMIAN_TARGET inline Floats broadcast(const float* value) { return _mm256_set1_ps(*value); }
GRAMIAN_TARGET inline Floats multiply_add(Floats a, Floats b, Floats sum) {
  return _mm256_fmadd_ps(a, b, sum);
}
#include GRAMIAN_BODY
#undef GRAMIAN_TARGET
}  // namespace avx2
namespace avx512 {
#define GRAMIAN_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl" GRAMIAN_WIDE_VECTORS)]]
typedef float Floats __attribute__((vector_size(64)));
constexpr int kLanes = 16;
GRAMIAN_TARGET inline Floats broadcast(const float* value) { return _mm512_set1_ps(*value); }
GRAMIAN_TARGET inline Floats multiply_add(Floats a, Floats b, Floats sum) {
  return _mm512_fmadd_ps(a, b, sum);
}
#include GRAMIAN_BODY
#undef GRAMIAN_TARGET
}  // namespace avx512
#endif
#undef GRAMIAN_BODY
