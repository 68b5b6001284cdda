// The block recursion, once per CPU level (kernels/each_level.h); GRAMIAN_LANES rows per vector. Products and sums stay
// apart (no fused multiply-add).

typedef float Floats __attribute__((vector_size(GRAMIAN_LANES * 4)));

// e and codes [columns][kBlockRows] out; loss [kBlockRows] is added to. Column j collects its updates when
// its turn comes, with four accumulators in registers.
GRAMIAN_TARGET inline void recursion(const SolveBlock& block, float* e, float* codes, float* loss) {
  constexpr int kVectors = 4;
  const Floats zero = {};
  const Floats magic = zero + 12582912.0f;  // 1.5·2^23: adding it rounds to an integer, half to even
  const Floats lo = zero + static_cast<float>(block.code_min);
  const Floats hi = zero + static_cast<float>(block.code_max);
  for (int64_t first = 0; first < block.rows; first += kVectors * GRAMIAN_LANES) {
    for (int64_t j = 0; j < block.columns; ++j) {
      Floats value[kVectors];
      __builtin_memcpy(value, block.weights + j * kBlockRows + first, sizeof value);
      const float* upper = block.diagonal_t + j * kBlockColumns;
      for (int64_t i = 0; i < j; ++i) {
        Floats error[kVectors];
        __builtin_memcpy(error, e + i * kBlockRows + first, sizeof error);
        for (int v = 0; v < kVectors; ++v) value[v] -= error[v] * upper[i];
      }
      const int64_t group = block.group[j];
      const bool counts = block.dead == nullptr || !block.dead[j];
      Floats scale[kVectors], sums[kVectors], point[kVectors] = {};
      if (block.zero != nullptr)
        __builtin_memcpy(point, block.zero + group * kBlockRows + first, sizeof point);
      __builtin_memcpy(scale, block.scale + group * kBlockRows + first, sizeof scale);
      __builtin_memcpy(sums, loss + first, sizeof sums);
      for (int v = 0; v < kVectors; ++v) {
        Floats code = value[v] / scale[v];
        const Floats least = lo - point[v], most = hi - point[v];
        code = code > least ? code : least;
        code = code < most ? code : most;
        code = (code + magic) - magic;
        const Floats difference = value[v] - code * scale[v];
        if (counts) sums[v] += difference * difference / (upper[j] * upper[j]) / 2.0f;
        value[v] = code + point[v];
        scale[v] = difference / upper[j];
      }
      __builtin_memcpy(codes + j * kBlockRows + first, value, sizeof value);
      __builtin_memcpy(e + j * kBlockRows + first, scale, sizeof scale);
      __builtin_memcpy(loss + first, sums, sizeof sums);
    }
  }
}
