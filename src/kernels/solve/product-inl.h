// The product that later columns are updated with, once per CPU level (kernels/each_level.h); GRAMIAN_LANES rows per vector.
// Products and sums stay apart (no fused multiply-add).

typedef float Floats __attribute__((vector_size(GRAMIAN_LANES * 4)));

GRAMIAN_TARGET inline const float* row_of(const StepProduct& product, int64_t i) {
  return product.matrix + (product.rows_of == nullptr ? i : product.rows_of[i]) * product.stride;
}

// kPanel columns of the matrix lie in as many pages as it has rows, and often in one set of the cache: they are brought together once
// for all rows of `into`.
GRAMIAN_TARGET inline void subtract(const StepProduct& product) {
  constexpr int kPanel = 16;                             // columns: a cache line of the matrix
  constexpr int kVectors = GRAMIAN_LANES == 16 ? 1 : 2;  // of rows, and
  constexpr int kTile = GRAMIAN_LANES == 16 ? 16 : 4;    // columns whose sums are in registers
  alignas(64) float panel[kBlockColumns * kPanel];
  for (int64_t j = 0; j < product.width; j += kPanel) {
    const int64_t width = product.width - j < kPanel ? product.width - j : kPanel;
    for (int64_t i = 0; i < product.columns; ++i) {
      const float* entry = row_of(product, i) + j;
      float* packed = panel + i * kPanel;
      if (width == kPanel) {
        __builtin_memcpy(packed, entry, kPanel * sizeof(float));
        __builtin_prefetch(entry + kPanel);
      } else {
        for (int c = 0; c < kPanel; ++c) packed[c] = c < width ? entry[c] : 0.0f;
      }
    }
    for (int64_t first = 0; first < product.rows; first += kVectors * GRAMIAN_LANES) {
      for (int64_t begin = 0; begin < width; begin += kTile) {
        Floats sum[kTile][kVectors] = {};
        const float* entry = panel + begin;
        const float* steps = product.steps + first;
        for (int64_t i = 0; i < product.columns; ++i, entry += kPanel, steps += kBlockRows) {
          Floats step[kVectors];  // each copied alone: g++ moves an array of them over the stack
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v)
            __builtin_memcpy(&step[v], steps + v * GRAMIAN_LANES, sizeof(Floats));
#pragma GCC unroll 16
          for (int c = 0; c < kTile; ++c) {
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) sum[c][v] += step[v] * entry[c];
          }
        }
        float* into = product.into + (j + begin) * kBlockRows + first;
#pragma GCC unroll 16
        for (int c = 0; c < kTile; ++c) {
          if (begin + c >= width) break;
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            Floats value;
            float* place = into + c * kBlockRows + v * GRAMIAN_LANES;
            __builtin_memcpy(&value, place, sizeof value);
            value -= sum[c][v];
            __builtin_memcpy(place, &value, sizeof value);
          }
        }
      }
    }
  }
}
