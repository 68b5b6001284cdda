// Compiles a body once per CPU level. A source defines GRAMIAN_BODY, the quoted name of an -inl.h file, and includes this
// file inside its anonymous namespace, once or more: the body's functions then stand in the namespaces `baseline`, `avx2`
// and `avx512` (x86-64 has the last two). The body sees
//   GRAMIAN_TARGET  attribute naming the instruction set, for every function
//   GRAMIAN_LANES   floats per vector: 4, 8 or 16
// and includes nothing itself. No include guard: the repetition is the purpose.

namespace baseline {
#define GRAMIAN_TARGET
#define GRAMIAN_LANES 4
#include GRAMIAN_BODY
#undef GRAMIAN_TARGET
#undef GRAMIAN_LANES
}  // namespace baseline
#if defined(__x86_64__)
namespace avx2 {
#define GRAMIAN_TARGET [[gnu::target("avx2")]]
#define GRAMIAN_LANES 8
#include GRAMIAN_BODY
#undef GRAMIAN_TARGET
#undef GRAMIAN_LANES
}  // namespace avx2
namespace avx512 {
#define GRAMIAN_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]
#define GRAMIAN_LANES 16
#include GRAMIAN_BODY
#undef GRAMIAN_TARGET
#undef GRAMIAN_LANES
}  // namespace avx512
#endif
#undef GRAMIAN_BODY
