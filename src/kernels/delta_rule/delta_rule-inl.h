// Chunks of one head, once per instruction set (kernels/each_fma_level.h says what it sees).

typedef int32_t Integers __attribute__((vector_size(kLanes * 4)));
// A tile's columns in vectors and its rows: kTileRows kVectors sums and a row of operands fit the registers.
constexpr int kVectors = 2, kTileRows = 6;
constexpr int64_t kColumns = kVectors * kLanes;  // of a panel of the state: panel[padded(d_k)][kColumns]
static_assert(kPad % kLanes == 0 && kTileRows <= kTileRowsMax && 2 * kChunk % kTileRows == 0 &&
              kColumns <= kColumnsMax);

GRAMIAN_TARGET [[gnu::always_inline]] inline Floats load(const float* from) {
  Floats value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
GRAMIAN_TARGET [[gnu::always_inline]] inline void store(float* to, Floats value) {
  __builtin_memcpy(to, &value, sizeof value);
}

GRAMIAN_TARGET inline float total(Floats sums) {
  typedef float Quarter __attribute__((vector_size(16)));
  Quarter parts[kLanes / 4];
  __builtin_memcpy(parts, &sums, sizeof sums);
  for (int i = 1; i < kLanes / 4; ++i) parts[0] += parts[i];
  return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

GRAMIAN_TARGET inline float dot(const float* x, const float* y, int64_t padded) {
  Floats sums = {};
  for (int64_t i = 0; i < padded; i += kLanes) sums = multiply_add(load(x + i), load(y + i), sums);
  return total(sums);
}

// x = exp(x) for x <= 0, within 2 ulp. Below -80 it stays at e^-80: that small is nothing, and products with it are no
// denormal numbers, which cost a hundred times as much as others.
GRAMIAN_TARGET inline Floats exponential(Floats x) {
  x = x < -80.0f ? Floats{} - 80.0f : x;
  // Adding 1.5 · 2^23 rounds to an integer n, which then stands in the last bits; r = x - n log 2.
  const Floats shifted = x * 1.44269504f + 12582912.0f;
  const Floats n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats sum = Floats{} + 1.0f / 5040;
  for (const float factorial : {720.0f, 120.0f, 24.0f, 6.0f, 2.0f, 1.0f, 1.0f})
    sum = multiply_add(sum, r, Floats{} + 1 / factorial);
  return reinterpret_cast<Floats>(reinterpret_cast<Integers>(sum) +
                                  (reinterpret_cast<Integers>(shifted) << 23));
}

// The vector of a token as floats, filled up with zeros.
template <class F>
GRAMIAN_TARGET inline void put_typed(const TokenVectors& x, int64_t token, int64_t width,
                                     float* __restrict to) {
  const auto* from = static_cast<const typename F::Stored*>(x.data) + token * x.stride;
  for (int64_t i = 0; i < width; ++i) to[i] = F::widen(from[i]);
  for (int64_t i = width; i < padded(width); ++i) to[i] = 0;
}
GRAMIAN_TARGET inline void put(const TokenVectors& x, int64_t token, int64_t width, float* to) {
  if (x.type == DType::f32) return put_typed<F32>(x, token, width, to);
  if (x.type == DType::f16) return put_typed<F16>(x, token, width, to);
  put_typed<BF16>(x, token, width, to);
}

GRAMIAN_TARGET inline void normalise(float* x, int64_t padded, float scale) {
  const float factor = scale / __builtin_sqrtf(dot(x, x, padded) + 1e-6f);
  for (int64_t i = 0; i < padded; ++i) x[i] *= factor;
}

GRAMIAN_TARGET void put_tokens(const DeltaHead& head, int64_t begin, const Chunk& c) {
  const int64_t keys = padded(head.d_k);
  const float scale = 1 / __builtin_sqrtf(static_cast<float>(head.d_k));
  for (int64_t i = 0; i < c.tokens; ++i) {
    float* const k = c.kq + 2 * i * keys;
    put(head.k, begin + i, head.d_k, k);
    put(head.q, begin + i, head.d_k, k + keys);
    put(head.v, begin + i, head.d_v, c.v + i * padded(head.d_v));
    put(head.beta, begin + i, 1, c.beta + i * kPad);
    normalise(k, keys, 1);
    normalise(k + keys, keys, scale);
  }
}

// What the tokens of a chunk are to each other, with one decay a token.
GRAMIAN_TARGET void prepare_heads(const DeltaHead& head, int64_t begin, const Chunk& c) {
  const int64_t keys = padded(head.d_k);
  float between[kChunk];  // D_ij, i the token of the loop
  float from_start = 1;
  for (int64_t i = 0; i < c.tokens; ++i) {
    put(head.g, begin + i, 1, c.decay);
    store(c.decay, exponential(load(c.decay)));
    from_start *= c.decay[0];
    from_start = from_start < kNothing ? 0 : from_start;
    c.from_start[i] = from_start;
    const float* const k = c.kq + 2 * i * keys;
    for (int64_t j = 0; j <= i; ++j) {
      const float* const other = c.kq + 2 * j * keys;
      Floats with_k = {}, with_q = {};
      for (int64_t a = 0; a < keys; a += kLanes) {
        with_k = multiply_add(load(other + a), load(k + a), with_k);
        with_q = multiply_add(load(other + a), load(k + keys + a), with_q);
      }
      between[j] = j < i ? between[j] * c.decay[0] : 1;
      c.with_k[i * kChunk + j] = between[j] * total(with_k);
      c.with_q[i * kChunk + j] = between[j] * total(with_q);
    }
  }
  for (int64_t j = 0; j < c.tokens; ++j) c.to_end[j] = between[j];
  for (int64_t a = 0; a < keys; ++a) c.kept[a] = from_start;
}

// With a decay a channel, which stands inside the products: the keys so far are carried along, decayed to the present token.
GRAMIAN_TARGET void prepare_channels(const DeltaHead& head, int64_t begin, const Chunk& c) {
  const int64_t keys = padded(head.d_k);
  for (int64_t a = 0; a < keys; ++a) c.kept[a] = 1;
  for (int64_t i = 0; i < c.tokens; ++i) {
    float* const k = c.kq + 2 * i * keys;
    float* const q = k + keys;
    float* const own = c.k_end + i * c.k_end_stride;
    put(head.g, begin + i, head.d_k, c.decay);
    for (int64_t a = 0; a < keys; a += kLanes) store(c.decay + a, exponential(load(c.decay + a)));
    for (int64_t j = 0; j < i; ++j) {
      float* const other = c.k_end + j * c.k_end_stride;
      Floats with_k = {}, with_q = {};
      for (int64_t a = 0; a < keys; a += kLanes) {
        const Floats decayed = load(other + a) * load(c.decay + a);
        store(other + a, decayed);
        with_k = multiply_add(decayed, load(k + a), with_k);
        with_q = multiply_add(decayed, load(q + a), with_q);
      }
      c.with_k[i * kChunk + j] = total(with_k);
      c.with_q[i * kChunk + j] = total(with_q);
    }
    c.with_q[i * kChunk + i] = dot(k, q, keys);
    for (int64_t a = 0; a < keys; a += kLanes) {
      Floats kept = load(c.kept + a) * load(c.decay + a);
      kept = kept < kNothing ? Floats{} : kept;
      store(c.kept + a, kept);
      store(own + a, load(k + a));
      store(k + a, load(k + a) * kept);
      store(q + a, load(q + a) * kept);
    }
    c.from_start[i] = c.to_end[i] = 1;
  }
}

// out [kTileRows][kColumns] = rows [kTileRows][stride] panel [depth][kColumns]. Every loop over the sums is unrolled in full:
// otherwise the compiler keeps them in memory.
GRAMIAN_TARGET [[gnu::noinline]] void tile(const float* rows, int64_t stride, const float* panel,
                                           int64_t depth, float* out) {
  Floats sum[kTileRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Floats{};
  }
#pragma GCC unroll 2
  for (int64_t a = 0; a < depth; ++a, panel += kColumns) {
    Floats column[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) column[v] = load(panel + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const Floats value = broadcast(rows + r * stride + a);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(value, column[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(out + r * kColumns + v * kLanes, sum[r][v]);
  }
}

// Rows behind the last that fill its tile hold anything. panel = diag(kept) panel + K'ᵀ C, K' the keys decayed to the chunk's end and C every second row of `changes`.
GRAMIAN_TARGET [[gnu::noinline]] void update(const Chunk& c, int64_t d_k, const float* changes,
                                             float* panel) {
  for (int64_t a = 0; a < d_k; a += kTileRows) {
    Floats sum[kTileRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = load(panel + (a + r) * kColumns + v * kLanes) * broadcast(c.kept + a + r);
    }
#pragma GCC unroll 4
    for (int64_t j = 0; j < c.tokens; ++j) {
      Floats column[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) column[v] = load(changes + 2 * j * kColumns + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
        const Floats value = broadcast(c.k_end + j * c.k_end_stride + a + r);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(value, column[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(panel + (a + r) * kColumns + v * kLanes, sum[r][v]);
    }
  }
}

// Row 2 i of c.solved becomes row i of diag(to_end) X and row 2 i + 1 that of (Q Kᵀ∘D) X, with X = (I + A)⁻¹ diag(β).
GRAMIAN_TARGET void solve(const Chunk& c) {
  constexpr int kAcross = kPad / kLanes;
  float inverse[kChunk][kPad];
  for (int64_t i = 0; i < c.tokens; ++i) {
    float own[kPad] = {};
    own[i] = 1;
    Floats row[kAcross], mixed[kAcross] = {};
    for (int v = 0; v < kAcross; ++v) row[v] = load(own + v * kLanes);
    for (int64_t j = 0; j < i; ++j) {
      const Floats factor = broadcast(c.with_k + i * kChunk + j);
      for (int v = 0; v < kAcross; ++v) row[v] -= factor * load(&inverse[j][v * kLanes]);
    }
    for (int v = 0; v < kAcross; ++v) store(&inverse[i][v * kLanes], row[v] * broadcast(c.beta + i * kPad));
    for (int64_t j = 0; j <= i; ++j) {
      const Floats factor = broadcast(c.with_q + i * kChunk + j);
      for (int v = 0; v < kAcross; ++v)
        mixed[v] = multiply_add(factor, load(&inverse[j][v * kLanes]), mixed[v]);
    }
    const Floats to_end = broadcast(c.to_end + i);
    for (int v = 0; v < kAcross; ++v) {
      store(c.solved + 2 * i * kPad + v * kLanes, to_end * load(&inverse[i][v * kLanes]));
      store(c.solved + (2 * i + 1) * kPad + v * kLanes, mixed[v]);
    }
  }
}

// The chunk over one panel, columns [column, column + width) of the state.
GRAMIAN_TARGET void run_panel(const DeltaHead& head, int64_t begin, const Chunk& c, int64_t column,
                              int64_t width, float* panel) {
  const int64_t keys = padded(head.d_k);
  alignas(64) float seen[2 * kChunk * kColumns], fresh[kChunk * kColumns], mixed[2 * kChunk * kColumns];
  for (int64_t r = 0; r < 2 * c.tokens; r += kTileRows)
    tile(c.kq + r * keys, keys, panel, head.d_k, seen + r * kColumns);
  for (int64_t i = 0; i < c.tokens; ++i) {
    const Floats from_start = broadcast(c.from_start + i);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Floats value = load(c.v + i * padded(head.d_v) + column + v * kLanes);
      store(fresh + i * kColumns + v * kLanes,
            value - from_start * load(seen + 2 * i * kColumns + v * kLanes));
    }
  }
  for (int64_t r = 0; r < 2 * c.tokens; r += kTileRows)
    tile(c.solved + r * kPad, kPad, fresh, c.tokens, mixed + r * kColumns);
  for (int64_t i = 0; i < c.tokens; ++i) {
    float part[kColumns];
    float* const to = head.out + (begin + i) * head.out_stride + column;
    float* const out = width == kColumns ? to : part;
    const Floats from_start = broadcast(c.from_start + i);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = (2 * i + 1) * kColumns + v * kLanes;
      store(out + v * kLanes, multiply_add(from_start, load(seen + at), load(mixed + at)));
    }
    for (int64_t v = 0; out == part && v < width; ++v) to[v] = part[v];
  }
  update(c, head.d_k, mixed, panel);
}

// Panels of the state, one behind the other, from head.state or back to it.
GRAMIAN_TARGET void move_state(const DeltaHead& head, float* panels, bool back) {
  for (int64_t column = 0; column < head.d_v; column += kColumns) {
    const int64_t width = column + kColumns < head.d_v ? kColumns : head.d_v - column;
    const auto bytes = static_cast<size_t>(width) * sizeof(float);
    for (int64_t a = 0; a < head.d_k; ++a) {
      float* const stored = head.state + a * head.d_v + column;
      float* const row = panels + column * panel_rows(head.d_k) + a * kColumns;
      __builtin_memcpy(back ? stored : row, back ? row : stored, bytes);
    }
  }
}

GRAMIAN_TARGET void run_head(const DeltaHead& head, Chunk c) {
  move_state(head, c.panels, false);
  for (int64_t begin = 0; begin < head.tokens; begin += kChunk) {
    c.tokens = head.tokens - begin < kChunk ? head.tokens - begin : kChunk;
    put_tokens(head, begin, c);
    if (head.per_channel) {
      prepare_channels(head, begin, c);
    } else {
      prepare_heads(head, begin, c);
    }
    solve(c);
    for (int64_t column = 0; column < head.d_v; column += kColumns) {
      const int64_t width = column + kColumns < head.d_v ? kColumns : head.d_v - column;
      run_panel(head, begin, c, column, width, c.panels + column * panel_rows(head.d_k));
    }
  }
  move_state(head, c.panels, true);
}
