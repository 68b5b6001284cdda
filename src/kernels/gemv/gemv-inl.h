// Products of rows with a vector, at the level that kernels/each_level.h compiles it for.

constexpr int kWidths = kParts / GRAMIAN_LANES;
typedef float Floats __attribute__((vector_size(4 * GRAMIAN_LANES)));

template <class Type>
GRAMIAN_TARGET inline Floats widened(const Type* from) {
  float wide[GRAMIAN_LANES];
#pragma GCC unroll 16
  for (int l = 0; l < GRAMIAN_LANES; ++l) wide[l] = widen(from[l]);
  Floats result;
  __builtin_memcpy(&result, wide, sizeof(result));
  return result;
}
template <>
GRAMIAN_TARGET inline Floats widened(const int8_t* from) {
#if GRAMIAN_LANES == 8
  // Spelled out: the compiler takes a vector of eight bytes apart, one by one.
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
  typedef int8_t Bytes __attribute__((vector_size(GRAMIAN_LANES)));
  Bytes bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return __builtin_convertvector(bytes, Floats);
#endif
}
// A conversion of whole vectors, which the compiler knows an instruction for.
template <>
GRAMIAN_TARGET inline Floats widened(const Bf16* from) {
  typedef uint16_t Halves __attribute__((vector_size(2 * GRAMIAN_LANES)));
  typedef uint32_t Words __attribute__((vector_size(4 * GRAMIAN_LANES)));
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
}
template <>
GRAMIAN_TARGET inline Floats widened(const float* from) {
  Floats result;
  __builtin_memcpy(&result, from, sizeof(result));
  return result;
}

template <class Type>
GRAMIAN_TARGET inline float dot(const Type* row, const float* x, int64_t columns) {
  Floats sum[kWidths] = {};
  int64_t c = 0;
  for (; c + kParts <= columns; c += kParts) {
#pragma GCC unroll 16
    for (int w = 0; w < kWidths; ++w)
      sum[w] += widened(row + c + w * GRAMIAN_LANES) * widened(x + c + w * GRAMIAN_LANES);
  }
  float part[kParts];
  __builtin_memcpy(part, sum, sizeof(part));
  for (int l = 0; c < columns; ++c, ++l) part[l] += widen(row[c]) * x[c];
  for (int width = kParts / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) part[l] += part[l + width];
  }
  return part[0];
}

template <class Type>
GRAMIAN_TARGET inline void rows_of(const StoredMatrix& matrix, const float* x, int64_t first, int64_t count,
                                   float* y) {
  const auto* values = static_cast<const Type*>(matrix.values);
  for (int64_t r = first; r < first + count; ++r) {
    const float sum = dot(values + r * matrix.columns, x, matrix.columns);
    y[r] = matrix.scales == nullptr ? sum : sum * matrix.scales[r];
  }
}

GRAMIAN_TARGET inline void run(const StoredMatrix& matrix, const float* x, int64_t first, int64_t count,
                               float* y) {
  switch (matrix.type) {
    case DType::i8:
      return rows_of<int8_t>(matrix, x, first, count, y);
    case DType::bf16:
      return rows_of<Bf16>(matrix, x, first, count, y);
    case DType::f16:
      return rows_of<Half>(matrix, x, first, count, y);
    default:
      return rows_of<float>(matrix, x, first, count, y);
  }
}
