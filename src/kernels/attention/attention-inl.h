// One key-value head and the query heads that share it, at the level that kernels/each_level.h compiles it for.

typedef float Floats __attribute__((vector_size(4 * GRAMIAN_LANES)));
constexpr int kVectors = kParts / GRAMIAN_LANES;
struct Parts {
  Floats vector[kVectors];
};

// sum += a · b, kParts products.
GRAMIAN_TARGET inline void add_products(Parts& sum, const float* a, const float* b) {
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    Floats x, y;
    __builtin_memcpy(&x, a + i * GRAMIAN_LANES, sizeof(x));
    __builtin_memcpy(&y, b + i * GRAMIAN_LANES, sizeof(y));
    sum.vector[i] += x * y;
  }
}

// Parts 8 apart first, then 4, 2, 1.
GRAMIAN_TARGET inline float sum_parts(const Parts& x) {
  typedef float Quarter __attribute__((vector_size(16)));
#if GRAMIAN_LANES == 4
  const Quarter quarter = (x.vector[0] + x.vector[2]) + (x.vector[1] + x.vector[3]);
#else
  typedef float Half __attribute__((vector_size(32)));
#if GRAMIAN_LANES == 8
  const Half half = x.vector[0] + x.vector[1];
#else
  const Floats& all = x.vector[0];
  const Half half = __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
  const Quarter quarter =
      __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#endif
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

// x[i] widened, and zeros up to a multiple of kParts.
template <class A>
GRAMIAN_TARGET inline void widen_padded(const typename A::Stored* __restrict x, int64_t size,
                                        float* __restrict wide) {
  int64_t i = 0;
  for (; i < size; ++i) wide[i] = A::widen(x[i]);
  for (; i % kParts != 0; ++i) wide[i] = 0;
}

// exp(x) for x <= 0, to 2 units in the last place; below -87 it stays at exp(-87). 2^n · e^r with r = x - n · ln 2, |r| <= 0.35.
GRAMIAN_TARGET inline void exp_all(float* __restrict x, int64_t count, float offset) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it leaves n in the low bits
  for (int64_t i = 0; i < count; ++i) {
    float value = x[i] - offset;
    value = value < -87.0f ? -87.0f : value;
    const float shifted = value * 1.44269504f + kRound;
    const float n = shifted - kRound;
    const float r = (value - n * 0.693359375f) - n * -2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * r + 1.3981999507e-3f;
    sum = sum * r + 8.3334519073e-3f;
    sum = sum * r + 4.1665795894e-2f;
    sum = sum * r + 1.6666665459e-1f;
    sum = sum * r + 5.0000001201e-1f;
    sum = sum * r * r + r + 1.0f;
    const uint32_t power = (std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u;
    x[i] = sum * std::bit_cast<float>(power);
  }
}

template <class A>
GRAMIAN_TARGET inline void widen_vector(const typename A::Stored* x, Floats& wide) {
  float entries[GRAMIAN_LANES];
  for (int l = 0; l < GRAMIAN_LANES; ++l) entries[l] = A::widen(x[l]);
  __builtin_memcpy(&wide, entries, sizeof(wide));
}

// scores [queries, positions] = scale · q·k; q [queries, padded size] in f32. `row` holds one widened key.
template <class A>
GRAMIAN_TARGET inline void score(const OneQuery& query, const typename A::Stored* k, const float* q,
                                 int64_t queries, float* row, float* scores) {
  const int64_t padded = (query.size + kParts - 1) / kParts * kParts;
  for (int64_t s = 0; s < query.positions; ++s, k += query.k_position_stride) {
    widen_padded<A>(k, query.size, row);
    for (int64_t h = 0; h < queries; ++h) {
      Parts sum{};
      for (int64_t i = 0; i < padded; i += kParts) add_products(sum, q + h * padded + i, row + i);
      scores[h * query.positions + s] = sum_parts(sum) * query.scale;
    }
  }
}

// The same for a known size: the key stays in registers.
template <class A, int kSize>
GRAMIAN_TARGET inline void score_known(const OneQuery& query, const typename A::Stored* k, const float* q,
                                       int64_t queries, float* scores) {
  constexpr int kHeld = kSize / GRAMIAN_LANES;
  for (int64_t s = 0; s < query.positions; ++s, k += query.k_position_stride) {
    Floats wide[kHeld];
#pragma GCC unroll 32
    for (int i = 0; i < kHeld; ++i) widen_vector<A>(k + i * GRAMIAN_LANES, wide[i]);
    for (int64_t h = 0; h < queries; ++h) {
      Parts sum{};
#pragma GCC unroll 32
      for (int i = 0; i < kHeld; ++i) {
        Floats x;
        __builtin_memcpy(&x, q + h * kSize + i * GRAMIAN_LANES, sizeof(x));
        sum.vector[i % kVectors] += x * wide[i];
      }
      scores[h * query.positions + s] = sum_parts(sum) * query.scale;
    }
  }
}

// out [queries, padded value size] = the sum of the values, each times its score.
template <class A>
GRAMIAN_TARGET inline void weigh(const OneQuery& query, const typename A::Stored* v, const float* scores,
                                 int64_t queries, float* row, float* out) {
  const int64_t padded = (query.value_size + kParts - 1) / kParts * kParts;
  for (int64_t i = 0; i < queries * padded; ++i) out[i] = 0;
  for (int64_t s = 0; s < query.positions; ++s, v += query.v_position_stride) {
    widen_padded<A>(v, query.value_size, row);
    for (int64_t h = 0; h < queries; ++h) {
      const float p = scores[h * query.positions + s];
      float* __restrict target = out + h * padded;
      for (int64_t i = 0; i < padded; ++i) target[i] += p * row[i];
    }
  }
}

// The same for values of a known size, a multiple of 64: 64 sums stay in registers.
template <class A>
GRAMIAN_TARGET inline void weigh_64(const OneQuery& query, const typename A::Stored* values,
                                    const float* scores, int64_t queries, float* out) {
  constexpr int kHeld = 64 / GRAMIAN_LANES;
  for (int64_t h = 0; h < queries; ++h) {
    for (int64_t begin = 0; begin < query.value_size; begin += 64) {
      const auto* v = values + begin;
      Floats sum[kHeld];
#pragma GCC unroll 16
      for (int i = 0; i < kHeld; ++i) sum[i] = Floats{};
      for (int64_t s = 0; s < query.positions; ++s, v += query.v_position_stride) {
        const float p = scores[h * query.positions + s];
#pragma GCC unroll 16
        for (int i = 0; i < kHeld; ++i) {
          Floats wide;
          widen_vector<A>(v + i * GRAMIAN_LANES, wide);
          sum[i] += p * wide;
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < kHeld; ++i)
        __builtin_memcpy(out + h * query.value_size + begin + i * GRAMIAN_LANES, &sum[i], sizeof(Floats));
    }
  }
}

template <class A>
GRAMIAN_TARGET inline void score_all(const OneQuery& query, const typename A::Stored* k, int64_t queries,
                                     const Scratch& scratch) {
  if (query.size == 64) return score_known<A, 64>(query, k, scratch.q, queries, scratch.scores);
  if (query.size == 128) return score_known<A, 128>(query, k, scratch.q, queries, scratch.scores);
  score<A>(query, k, scratch.q, queries, scratch.row, scratch.scores);
}
template <class A>
GRAMIAN_TARGET inline void weigh_all(const OneQuery& query, const typename A::Stored* v, int64_t queries,
                                     const Scratch& scratch) {
  if (query.value_size % 64 == 0) return weigh_64<A>(query, v, scratch.scores, queries, scratch.out);
  weigh<A>(query, v, scratch.scores, queries, scratch.row, scratch.out);
}

// A: the type of q and out; K: of keys and values.
template <class A, class K>
GRAMIAN_TARGET inline void head_of(const OneQuery& query, int64_t row, int64_t kv_head,
                                   const Scratch& scratch, typename A::Stored* out) {
  using Stored = typename A::Stored;
  const int64_t queries = query.heads / query.kv_heads, first = kv_head * queries;
  const int64_t padded = (query.size + kParts - 1) / kParts * kParts;
  const int64_t values = (query.value_size + kParts - 1) / kParts * kParts;
  for (int64_t h = 0; h < queries; ++h) {
    const auto* q =
        static_cast<const Stored*>(query.q) + row * query.q_row_stride + (first + h) * query.q_head_stride;
    widen_padded<A>(q, query.size, scratch.q + h * padded);
  }
  const auto* k = static_cast<const typename K::Stored*>(query.k) + row * query.k_row_stride +
                  kv_head * query.k_head_stride;
  const auto* v = static_cast<const typename K::Stored*>(query.v) + row * query.v_row_stride +
                  kv_head * query.v_head_stride;
  score_all<K>(query, k, queries, scratch);
  for (int64_t h = 0; h < queries; ++h) {
    float* scores = scratch.scores + h * query.positions;
    float most = scores[0];
    for (int64_t s = 1; s < query.positions; ++s) most = scores[s] > most ? scores[s] : most;
    exp_all(scores, query.positions, most);
  }
  weigh_all<K>(query, v, queries, scratch);
  for (int64_t h = 0; h < queries; ++h) {
    const float* scores = scratch.scores + h * query.positions;
    Parts parts{};
    int64_t s = 0;
    for (; s + kParts <= query.positions; s += kParts) add_products(parts, scores + s, kOnes);
    float total = sum_parts(parts);
    for (; s < query.positions; ++s) total += scores[s];
    Stored* target = out + ((row * query.heads) + first + h) * query.value_size;
    for (int64_t i = 0; i < query.value_size; ++i) target[i] = A::narrow(scratch.out[h * values + i] / total);
  }
}

GRAMIAN_TARGET inline void run(const OneQuery& query, int64_t row, int64_t kv_head, const Scratch& scratch,
                               void* out) {
  if (query.type == DType::bf16) {
    head_of<BF16, BF16>(query, row, kv_head, scratch, static_cast<BF16::Stored*>(out));
  } else if (query.type == DType::f16) {
    head_of<F16, F16>(query, row, kv_head, scratch, static_cast<F16::Stored*>(out));
  } else if (query.kept == DType::bf16) {
    head_of<F32, BF16>(query, row, kv_head, scratch, static_cast<F32::Stored*>(out));
  } else if (query.kept == DType::f16) {
    head_of<F32, F16>(query, row, kv_head, scratch, static_cast<F32::Stored*>(out));
  } else {
    head_of<F32, F32>(query, row, kv_head, scratch, static_cast<F32::Stored*>(out));
  }
}
