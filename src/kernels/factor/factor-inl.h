// Tiles and what is built from them, once per instruction set (kernels/each_fma_level.h says what it sees, factor.cpp for a
// level without fused multiply-adds).
//
// A block of rows is packed in panels of kPanel columns: panel[row][kPanel]. Includes nothing.

constexpr int kTileRows = kLanes == 16 ? 8 : 4;  // 3 kTileRows sums and 4 operands fit the registers
constexpr int kTileVectors = 3;
constexpr int kTileColumns = kTileVectors * kLanes;
typedef double Doubles __attribute__((vector_size(kLanes * 4)));

static_assert(kPanel % kTileRows == 0 && kPanel % kTileColumns == 0);

// out [kTileRows][kTileColumns] = sum, out - sum or -sum, where sum_rc = Σ_t rows[t][r] columns[t][c]. Every loop over
// the sums is unrolled in full: otherwise the compiler keeps them in memory, at half the speed.
template <Store kStore>
GRAMIAN_TARGET [[gnu::noinline]] void tile(const float* rows, const float* columns, int64_t depth, float* out,
                                           int64_t stride) {
  if constexpr (kStore != Store::sum) {
    for (int r = 0; r < kTileRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) __builtin_prefetch(out + r * stride + v * kLanes, 1);
      // Rows of `out` need not begin at a cache line.
      __builtin_prefetch(out + r * stride + kTileColumns - 1, 1);
    }
  }
  Floats sum[kTileRows][kTileVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) sum[r][v] = Floats{};
  }
#pragma GCC unroll 4
  for (int64_t t = 0; t < depth; ++t, rows += kPanel, columns += kPanel) {
    Floats column[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v)
      __builtin_memcpy(&column[v], columns + v * kLanes, sizeof column[v]);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const Floats value = broadcast(rows + r);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = multiply_add(value, column[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      Floats value = {};
      if constexpr (kStore == Store::subtract)
        __builtin_memcpy(&value, out + r * stride + v * kLanes, sizeof value);
      value = kStore == Store::sum ? sum[r][v] : value - sum[r][v];
      __builtin_memcpy(out + r * stride + v * kLanes, &value, sizeof value);
    }
  }
}

// The rows `rows`[.][0 .. kTileRows) of a product with one panel, to the first `width` columns of out.
template <Store kStore>
GRAMIAN_TARGET inline void row_tile(const float* rows, const float* panel, int64_t depth, float* out,
                                    int64_t stride, int64_t width) {
  for (int64_t c = 0; c < width; c += kTileColumns) {
    if (c + kTileColumns <= width) {
      tile<kStore>(rows, panel + c, depth, out + c, stride);
      continue;
    }
    alignas(64) float whole[kTileRows * kTileColumns] = {};
    tile<Store::subtract>(rows, panel + c, depth, whole, kTileColumns);
    for (int64_t r = 0; r < kTileRows; ++r) {
      for (int64_t i = 0; c + i < width; ++i) {
        const float before = kStore == Store::subtract ? out[r * stride + c + i] : 0.0f;
        out[r * stride + c + i] = before + whole[r * kTileColumns + i];
      }
    }
  }
}

// The same for kPanel rows and a whole panel, to rows of a panel.
template <Store kStore>
GRAMIAN_TARGET inline void square(const float* rows, const float* panel, int64_t depth, float* out) {
  for (int64_t i = 0; i < kPanel; i += kTileRows)
    row_tile<kStore>(rows + i, panel, depth, out + i * kPanel, kPanel, kPanel);
}

// tile [kPanel][kPanel] of A (lower triangle read) becomes U, `transposed` its transpose; rows and columns from `size`
// on become 0. Row by row from the last: row k is divided by the root of its pivot, which makes it a row of Rᵀ left of
// the diagonal and one of U right of it, and leaves the rows above by the multiples that R says. False at a pivot that
// is not positive and finite.
GRAMIAN_TARGET bool invert_tile(float* tile, int64_t size, float* transposed) {
  constexpr int kVectors = static_cast<int>(2 * kPanel / kLanes);
  union {
    double entry[kPanel][kPanel];
    Doubles vector[kPanel][kVectors];
  };
  for (int64_t i = 0; i < kPanel; ++i) {
    for (int64_t j = 0; j <= i; ++j)
      entry[i][j] = entry[j][i] = i < size ? static_cast<double>(tile[i * kPanel + j]) : 0.0;
  }
  for (int64_t k = size - 1; k >= 0; --k) {
    const double pivot = entry[k][k];
    if (!(pivot > 0 && pivot <= __DBL_MAX__)) return false;
    const double u = 1 / __builtin_sqrt(pivot);
    for (int v = 0; v < kVectors; ++v) vector[k][v] *= u;
    entry[k][k] = u;
    for (int64_t i = 0; i < k; ++i) {
      const double multiple = entry[k][i];
      entry[i][k] = 0;
      for (int v = 0; v < kVectors; ++v) vector[i][v] -= multiple * vector[k][v];
    }
  }
  for (int64_t i = 0; i < kPanel; ++i) {
    for (int64_t j = 0; j < kPanel; ++j) {
      const float value = j >= i ? static_cast<float>(entry[i][j]) : 0.0f;
      tile[i * kPanel + j] = transposed[j * kPanel + i] = value;
    }
  }
  return true;
}

// rows [kPanel][kPanel] of a panel = U rows, in place: row i needs itself and the ones after it.
GRAMIAN_TARGET inline void multiply_upper(const float* transposed, float* rows) {
  for (int64_t i = 0; i < kPanel; i += kTileRows) {
    row_tile<Store::sum>(transposed + i * kPanel + i, rows + i * kPanel, kPanel - i, rows + i * kPanel,
                         kPanel, kPanel);
  }
}

// The block's own panels, from last to first: U on and right of the diagonal tiles, Rᵀ left of them. The last tile has
// `last` rows. `transposed` becomes the panels of Uᵀ: [kBlock][kPanel] for each.
GRAMIAN_TARGET bool finish_diagonal(float* block, int64_t panels, int64_t last, float* transposed) {
  alignas(64) float upper[kPanel * kPanel];
  for (int64_t s = panels - 1; s >= 0; --s) {
    const int64_t below = (s + 1) * kPanel;
    float* const own = block + s * kPanel * kBlock;
    for (int64_t p = 0; p < panels; ++p) {
      float* const panel = block + p * kPanel * kBlock;
      float* const out = panel + s * kPanel * kPanel;
      if (p <= s) {
        square<Store::subtract>(own + below * kPanel, panel + below * kPanel, panels * kPanel - below, out);
      } else {
        square<Store::negative>(own + below * kPanel, panel + below * kPanel, (p + 1) * kPanel - below, out);
      }
    }
    if (!invert_tile(own + s * kPanel * kPanel, s + 1 == panels ? last : kPanel, upper)) return false;
    for (int64_t p = 0; p < panels; ++p) {
      if (p != s) multiply_upper(upper, block + p * kPanel * kBlock + s * kPanel * kPanel);
    }
  }
  for (int64_t s = 0; s < panels; ++s) {
    for (int64_t column = s * kPanel; column < panels * kPanel; ++column) {
      const float* const from = block + column / kPanel * kPanel * kBlock + column % kPanel;
      float* const to = transposed + (s * kBlock + column) * kPanel;
      for (int64_t r = 0; r < kPanel; ++r) to[r] = from[(s * kPanel + r) * kPanel];
    }
  }
  return true;
}

// Any other panel of the same rows: U times them, in place, since a row needs itself and the ones after it.
GRAMIAN_TARGET void finish_panel(const float* transposed, int64_t panels, float* panel) {
  for (int64_t s = 0; s < panels; ++s) {
    for (int64_t i = 0; i < kPanel; i += kTileRows) {
      const int64_t row = s * kPanel + i;
      row_tile<Store::sum>(transposed + (s * kBlock + row) * kPanel + i, panel + row * kPanel,
                           panels * kPanel - row, panel + row * kPanel, kPanel, kPanel);
    }
  }
}

// What the finished rows of `block` take from the rows of a above it: row panels [top, bottom) times panels
// [left, right), up to the diagonal or beyond the block's first column.
GRAMIAN_TARGET void update(const Step& step, const Part& part) {
  for (int64_t r = part.top; r < part.bottom; ++r) {
    for (int64_t i = 0; i < kPanel; i += kTileRows) {
      const float* rows = step.packed + r * kPanel * kBlock + i;
      float* const out = step.a + (r * kPanel + i) * step.stride;
      for (int64_t p = part.left; p < part.right && (p <= r || p >= step.first); ++p) {
        const float* panel = step.packed + p * kPanel * kBlock;
        const int64_t left = p * kPanel;
        const int64_t width = left + kPanel < step.columns ? kPanel : step.columns - left;
        if (p >= step.first && p < step.first + step.panels) {
          // Above the block nothing of U stands yet; below the panel's own tile stands Rᵀ.
          row_tile<Store::negative>(rows, panel, (p - step.first + 1) * kPanel, out + left, step.stride,
                                    width);
        } else {
          row_tile<Store::subtract>(rows, panel, step.panels * kPanel, out + left, step.stride, width);
        }
      }
    }
  }
}
