// Errors of GRAMIAN_LANES blocks, each with a scale of its own, once per CPU level (kernels/each_level.h). Lanes never mix, so the
// width does not show in the results.

typedef float Floats __attribute__((vector_size(GRAMIAN_LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(GRAMIAN_LANES * 4)));

// x [16, lanes], one block a lane -> totals. Gives up, with partial sums, as soon as all of them are above `limit`.
GRAMIAN_TARGET inline void block_errors(const float* x, const float* root, const float* scales,
                                        const float* limits, float* totals) {
  constexpr int kColumns = 16, kBetweenLooks = 4;
  const Floats zero = {};
  // Adding 1.5 · 2^23 · step rounds to a multiple of the step, half to even: steps of 0.5 below 2, 1 below 4 and 2 above.
  const Floats fine = zero + 0x1.8p22f, middle = zero + 0x1.8p23f, coarse = zero + 0x1.8p24f;
  const Floats most = zero + 6.0f, least = zero - 6.0f;
  Floats scale, limit, d[kColumns], total = zero;
  __builtin_memcpy(&scale, scales, sizeof scale);
  __builtin_memcpy(&limit, limits, sizeof limit);
  for (int k = kColumns - 1; k >= 0; --k) {
    Floats value;
    __builtin_memcpy(&value, x + k * GRAMIAN_LANES, sizeof value);
    Floats code = value / scale;
    code = code > least ? code : least;
    code = code < most ? code : most;
    const Floats size = (Floats)((Ints)code & 0x7fffffff);
    Floats magic = size < 2.0f ? fine : middle;
    magic = size < 4.0f ? magic : coarse;
    code = (code + magic) - magic;
    d[k] = value - code * scale;
    Floats term = d[k];
    if (root != nullptr) {
      term *= root[k * kColumns + k];
      for (int i = k + 1; i < kColumns; ++i) term += d[i] * root[k * kColumns + i];
    }
    total += term * term;
    if (k % kBetweenLooks != 0) continue;
    const Ints open = total <= limit;
    int64_t words[GRAMIAN_LANES / 2], any = 0;
    __builtin_memcpy(words, &open, sizeof words);
    for (const int64_t word : words) any |= word;
    if (any == 0) break;
  }
  __builtin_memcpy(totals, &total, sizeof total);
}
