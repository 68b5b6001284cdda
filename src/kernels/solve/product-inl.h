// The product that later columns are updated with, once per CPU level (kernels/each_level.h); GRAMIAN_LANES rows per vector.
// Products and sums stay apart (no fused multiply-add).

typedef float Floats __attribute__((vector_size(GRAMIAN_LANES * 4)));

GRAMIAN_TARGET inline const float* row_of(const StepProduct& product, int64_t i) {
  return product.matrix + (product.rows_of == nullptr ? i : product.rows_of[i]) * product.stride;
}

// A tile of kTile columns of the matrix is one or half a cache line wide; its 128 lines lie in as many pages, so the
// next tile's are asked for ahead of time.
GRAMIAN_TARGET inline void subtract(const StepProduct& product) {
  constexpr int kTile = GRAMIAN_LANES == 16 ? 16 : 8;  // accumulators that fit the registers
  int64_t j = 0;
  for (; j + kTile <= product.width; j += kTile) {
    for (int64_t i = 0; i < product.columns; ++i) __builtin_prefetch(row_of(product, i) + j + kTile);
    for (int64_t first = 0; first < product.rows; first += GRAMIAN_LANES) {
      Floats sum[kTile] = {};
      for (int64_t i = 0; i < product.columns; ++i) {
        const float* entry = row_of(product, i) + j;
        Floats step;
        __builtin_memcpy(&step, product.steps + i * kBlockRows + first, sizeof step);
        for (int c = 0; c < kTile; ++c) sum[c] += step * entry[c];
      }
      for (int c = 0; c < kTile; ++c) {
        Floats value;
        __builtin_memcpy(&value, product.into + (j + c) * kBlockRows + first, sizeof value);
        value -= sum[c];
        __builtin_memcpy(product.into + (j + c) * kBlockRows + first, &value, sizeof value);
      }
    }
  }
  for (; j < product.width; ++j) {
    for (int64_t first = 0; first < product.rows; first += GRAMIAN_LANES) {
      Floats sum = {}, step, value;
      for (int64_t i = 0; i < product.columns; ++i) {
        __builtin_memcpy(&step, product.steps + i * kBlockRows + first, sizeof step);
        sum += step * row_of(product, i)[j];
      }
      __builtin_memcpy(&value, product.into + j * kBlockRows + first, sizeof value);
      value -= sum;
      __builtin_memcpy(product.into + j * kBlockRows + first, &value, sizeof value);
    }
  }
}
