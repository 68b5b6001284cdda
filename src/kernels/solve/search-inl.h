// The candidate search over one row, once per CPU level (kernels/each_level.h); GRAMIAN_LANES candidates per vector,
// which divides kGridCandidates. Vector extensions, not an always_inline body: g++ splits wide vectors before it inlines.
// Lanes never mix, so the width does not show in the results. Compilers without a shuffle by a variable (clang) look the
// power up lane by lane.

typedef float Floats __attribute__((vector_size(GRAMIAN_LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(GRAMIAN_LANES * 4)));

// Σ |clamp(rne(x / s))·s - x|^p for GRAMIAN_LANES candidates -> totals. Gives up, with partial sums
// that are above `limit` in every lane, as soon as that is so: the sums only grow, so none of these
// candidates can win.
GRAMIAN_TARGET inline void candidate_errors(const float* x, int64_t columns, const PowerTable& power,
                                            const Candidates& tried, float limit, float* totals) {
  constexpr int64_t kChunk = 32;  // columns between two looks at the limit, and per partial sum
  const Floats zero = {};
  const Ints izero = {};
  const Floats magic = zero + 12582912.0f;  // 1.5·2^23: adding it rounds to an integer, half to even
  Floats scale, lo, hi;
  __builtin_memcpy(&scale, tried.scale, sizeof scale);
  __builtin_memcpy(&lo, tried.least, sizeof lo);
  __builtin_memcpy(&hi, tried.most, sizeof hi);
  // A rounded reciprocal can pick the other neighbour only where both are equally far (to the last bit).
  const Floats inverse = 1.0f / scale;
#if GRAMIAN_LANES == 16 && __has_builtin(__builtin_shuffle)
  Floats low_half, high_half;
  __builtin_memcpy(&low_half, power.binary, sizeof low_half);
  __builtin_memcpy(&high_half, power.binary + 16, sizeof high_half);
#elif GRAMIAN_LANES == 8 && __has_builtin(__builtin_shuffle)
  Floats quarter[4];
  __builtin_memcpy(quarter, power.binary, sizeof quarter);
#endif
  const float *c = power.coefficient, c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3], c4 = c[4], c5 = c[5],
              c6 = c[6];
  Floats total = zero;
  for (int64_t begin = 0; begin < columns; begin += kChunk) {
    const int64_t end = begin + kChunk < columns ? begin + kChunk : columns;
    Floats sum = zero;
    for (int64_t j = begin; j < end; ++j) {
      const Floats value = zero + x[j];
      Floats code = value * inverse;
      code = code > lo ? code : lo;
      code = code < hi ? code : hi;
      code = (code + magic) - magic;
      const Ints bits = (Ints)(code * scale - value) & 0x7fffffff;
      Ints index = (bits >> 23) - PowerTable::kBias;
      index = index > izero ? index : izero;
#if GRAMIAN_LANES == 16 && __has_builtin(__builtin_shuffle)
      const Floats binary = __builtin_shuffle(low_half, high_half, index);
#elif GRAMIAN_LANES == 8 && __has_builtin(__builtin_shuffle)
      const Floats low =
          (index & 8) == izero ? __builtin_shuffle(quarter[0], index) : __builtin_shuffle(quarter[1], index);
      const Floats high =
          (index & 8) == izero ? __builtin_shuffle(quarter[2], index) : __builtin_shuffle(quarter[3], index);
      const Floats binary = (index & 16) == izero ? low : high;
#else
      Floats binary;
      for (int lane = 0; lane < GRAMIAN_LANES; ++lane) binary[lane] = power.binary[index[lane] & 31];
#endif
      const Floats t = (Floats)((bits & 0x007fffff) | 0x3f800000) - 1.5f;
      // Estrin's order: the chain of dependent operations is what limits this loop.
      const Floats t2 = t * t;
      const Floats c01 = t * c1 + c0;
      const Floats c23 = t * c3 + c2;
      const Floats c45 = t * c5 + c4;
      const Floats mantissa = (t2 * t2) * (t2 * c6 + c45) + (t2 * c23 + c01);
      sum += binary * mantissa;
    }
    total += sum;
    const Ints open = total <= limit;
    int64_t words[GRAMIAN_LANES / 2], any = 0;
    __builtin_memcpy(words, &open, sizeof words);
    for (int64_t word : words) any |= word;
    if (any == 0) break;
  }
  __builtin_memcpy(totals, &total, sizeof total);
}
