// The bodies of the product at one level, included by product.cpp inside the level's namespace, which has
//   GRAMIAN_TARGET     attribute naming the instruction set, for every function
//   kBytes, kUnit      bytes of a vector; bytes of an expanded weight: 1, or 2 where products are of int16
//   kOffset            what expanded weights have on top of v: 128 where one factor must be unsigned, else 0
//   kHeldRows          rows whose sums fit the registers beside 2 vectors of weights
//   Bytes, Floats      vectors of integers and of f32
//   Quants             16 activations, the same in every 128-bit lane, as add_products takes them
//   load, store, broadcast16, broadcast4, zero, add, spread (i32), low_codes, high_codes, look_up, unpack of 32 and 64 bits,
//   ratios, lane_entry, values, quants, add_products (of a vector of bytes), multiply_add (of expanded weights), put_weights
// Loops over registers are unrolled: with one that is not, the compiler keeps the array in memory.

constexpr int64_t kLanes = kBytes / 4;         // channels of one vector of expanded weights
constexpr int64_t kTileChannels = 2 * kLanes;  // 2 vectors
constexpr int64_t kDepth = 2048;               // inputs expanded at once: 2 vectors of channels stay in L2
constexpr int64_t kStepBytes = 2 * kBytes * kUnit;  // of expanded weights: 4 inputs of a tile

// 4x4 transpose of 32-bit entries inside each lane: x[d] then holds entry d of the channels in order.
GRAMIAN_TARGET inline void transpose(Bytes (&x)[4]) {
  const Bytes a = unpack32_low(x[0], x[1]), b = unpack32_high(x[0], x[1]);
  const Bytes c = unpack32_low(x[2], x[3]), d = unpack32_high(x[2], x[3]);
  x[0] = unpack64_low(a, c);
  x[1] = unpack64_high(a, c);
  x[2] = unpack64_low(b, d);
  x[3] = unpack64_high(b, d);
}

// What the 16 codes of channel 4c + j stand for in lane c of table[j], for the kLanes channels from `half` on.
GRAMIAN_TARGET inline void make_tables(const Weights& weights, int64_t panel, int64_t half, int64_t k,
                                       Bytes (&table)[4]) {
  Floats ratio;
  if (weights.ratios != nullptr) {
    ratio = ratios(weights.ratios + (panel * (weights.k / kGroup) + k / kGroup) * kPanel + half * kLanes);
  } else {
    ratio = whole_row_ratio();
  }
  table[0] = values(lane_entry<0>(ratio));
  table[1] = values(lane_entry<1>(ratio));
  table[2] = values(lane_entry<2>(ratio));
  table[3] = values(lane_entry<3>(ratio));
}

template <int kRows>
GRAMIAN_TARGET inline void few(const Weights& weights, int64_t panel, int64_t half, const int8_t* q,
                               const int32_t* sums, int32_t* acc, int64_t stride) {
  constexpr int64_t kAhead = 4096;  // bytes to prefetch ahead
  const uint8_t* codes = weights.codes + panel * weights.k * 8 + half * kBytes;
  const int64_t group = weights.ratios != nullptr ? kGroup : weights.k;
  Bytes sum[kRows][4];
#pragma GCC unroll 16
  for (int i = 0; i < 4 * kRows; ++i) sum[i / 4][i % 4] = zero();
  for (int64_t begin = 0; begin < weights.k; begin += group) {
    Bytes table[4];
    make_tables(weights, panel, half, begin, table);
    for (int64_t k = begin; k < begin + group; k += 32, codes += 256) {
      Quants low[kRows], high[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        low[r] = quants(broadcast16(q + r * weights.k + k));
        high[r] = quants(broadcast16(q + r * weights.k + k + 16));
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        __builtin_prefetch(codes + j * 64 + kAhead);
        const Bytes packed = load(codes + j * 64);
        const Bytes first = look_up(table[j], low_codes(packed));
        const Bytes second = look_up(table[j], high_codes(packed));
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[r][j] = add_products(sum[r][j], first, low[r]);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[r][j] = add_products(sum[r][j], second, high[r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    transpose(sum[r]);
    const Bytes all = add(add(sum[r][0], sum[r][1]), add(sum[r][2], sum[r][3]));
    store(acc + r * stride + half * kLanes, add(all, spread(correction(sums[r]))));
  }
}

GRAMIAN_TARGET void multiply_few(const Weights& weights, int64_t first, int64_t count, const int8_t* q,
                                 int64_t rows, int32_t* acc) {
  int32_t sums[kFewRows] = {};
  if constexpr (kOffset != 0) {
    for (int64_t r = 0; r < rows; ++r) sums[r] = row_sum(q + r * weights.k, weights.k);
  }
  for (int64_t n = 0; n < count; n += kPanel) {
    const int64_t panel = (first + n) / kPanel;
    for (int64_t half = 0; half < kPanel / kLanes; ++half) {
      int64_t r = 0;
      if constexpr (kBytes == 64) {  // more rows need 32 registers
        if (rows == 4) few<4>(weights, panel, half, q, sums, acc + n, count);
        if (rows == 3) few<3>(weights, panel, half, q, sums, acc + n, count);
        if (rows == 2) few<2>(weights, panel, half, q, sums, acc + n, count);
        if (rows >= 2) r = rows;
      }
      for (; r < rows; ++r)
        few<1>(weights, panel, half, q + r * weights.k, sums + r, acc + r * count + n, count);
    }
  }
}

// Inputs begin .. end of one vector of channels, from `first` on -> panel, in steps of 4 inputs.
GRAMIAN_TARGET inline void expand(const Weights& weights, int64_t first, int64_t begin, int64_t end,
                                  uint8_t* panel) {
  const int64_t index = first / kPanel, half = first % kPanel / kLanes;
  const uint8_t* codes = weights.codes + index * weights.k * 8 + begin * 8 + half * kBytes;
  Bytes table[4];
  for (int64_t k = begin; k < end; k += 32, codes += 256, panel += 8 * kStepBytes) {
    if (k == begin || k % kGroup == 0) make_tables(weights, index, half, k, table);
    Bytes low[4], high[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Bytes packed = load(codes + j * 64);
      low[j] = look_up(table[j], low_codes(packed));
      high[j] = look_up(table[j], high_codes(packed));
    }
    transpose(low);
    transpose(high);
#pragma GCC unroll 4
    for (int d = 0; d < 4; ++d) {
      put_weights(panel + d * kStepBytes, low[d]);
      put_weights(panel + (4 + d) * kStepBytes, high[d]);
    }
  }
}

// acc [kRows, stride] += the products of kRows rows and one tile of channels over `steps` units of 4 bytes a row.
template <int kRows>
GRAMIAN_TARGET inline void tile(const uint8_t* panel, const uint8_t* rows, int64_t steps, int32_t* acc,
                                int64_t stride) {
  Bytes sum[kRows][2];
#pragma GCC unroll 24
  for (int i = 0; i < 2 * kRows; ++i) sum[i / 2][i % 2] = load(acc + i / 2 * stride + i % 2 * kLanes);
  for (int64_t step = 0; step < steps; ++step, panel += 2 * kBytes, rows += 4 * kRows) {
    const Bytes left = load(panel), right = load(panel + kBytes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Bytes q = broadcast4(rows + 4 * r);
      sum[r][0] = multiply_add(sum[r][0], left, q);
      sum[r][1] = multiply_add(sum[r][1], right, q);
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < 2 * kRows; ++i) store(acc + i / 2 * stride + i % 2 * kLanes, sum[i / 2][i % 2]);
}

// Rows of the tile that begins where `rest` are left.
constexpr int64_t tile_rows(int64_t rest) {
  constexpr int64_t part = kHeldRows / 3;
  return rest >= kHeldRows ? kHeldRows : (rest + part - 1) / part * part;
}

GRAMIAN_TARGET void multiply_many(const Weights& weights, int64_t first, const uint8_t* operand,
                                  const int32_t* sums, int64_t rows, int32_t* acc) {
  alignas(64) uint8_t panel[kDepth / 4 * kStepBytes];
  for (int64_t m = 0; m < (rows + 3) / 4 * 4; ++m) {
    for (int64_t n = 0; n < kManyChannels; ++n)
      acc[m * kManyChannels + n] = m < rows ? correction(sums[m]) : 0;
  }
  for (int64_t n = 0; n < kManyChannels; n += kTileChannels) {
    for (int64_t begin = 0; begin < weights.k; begin += kDepth) {
      const int64_t end = begin + kDepth < weights.k ? begin + kDepth : weights.k;
      expand(weights, first + n, begin, end, panel);
      expand(weights, first + n + kLanes, begin, end, panel + kBytes);
      const int64_t steps = (end - begin) / 4 * kUnit;
      for (int64_t m = 0; m < rows; m += kHeldRows) {
        const int64_t held = tile_rows(rows - m);
        const uint8_t* part = operand + (m * weights.k + begin * held) * kUnit;
        int32_t* out = acc + m * kManyChannels + n;
        if (held == kHeldRows) {
          tile<kHeldRows>(panel, part, steps, out, kManyChannels);
        } else if (held == kHeldRows / 3) {
          tile<kHeldRows / 3>(panel, part, steps, out, kManyChannels);
        } else {
          tile<kHeldRows / 3 * 2>(panel, part, steps, out, kManyChannels);
        }
      }
    }
  }
}

// In each tile of rows, for each 4 inputs: 4 bytes a row, or the int16 pairs of inputs 0 and 2, then those of 1 and 3.
GRAMIAN_TARGET void arrange_rows(const int8_t* q, int64_t rows, int64_t k, uint8_t* operand, int32_t* sums) {
  for (int64_t m = 0; m < rows; m += kHeldRows) {
    const int64_t held = tile_rows(rows - m);
    for (int64_t r = 0; r < held; ++r) {
      const bool real = m + r < rows;
      const int8_t* row = q + (m + r) * k;
      if (real) sums[m + r] = kOffset != 0 ? row_sum(row, k) : 0;
      for (int64_t i = 0; i < k; i += 4) {
        uint32_t four = 0;
        if (real) __builtin_memcpy(&four, row + i, 4);
        put_quants(operand + (m * k + i * held) * kUnit + 4 * r, held, four);
      }
    }
  }
}
