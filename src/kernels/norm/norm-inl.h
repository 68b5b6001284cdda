// The norm of one row, at the level that kernels/each_level.h compiles it for.

template <class A>
GRAMIAN_TARGET inline void widen_row(const typename A::Stored* __restrict x, int64_t size,
                                     float* __restrict wide) {
  for (int64_t i = 0; i < size; ++i) wide[i] = A::widen(x[i]);
}

// Of the values, or of their squares.
template <bool kSquares>
GRAMIAN_TARGET inline float sum_row(const float* x, int64_t size) {
  Parts sum{};
  int64_t i = 0;
  for (; i + kParts <= size; i += kParts) {
    Parts next;
    __builtin_memcpy(&next, x + i, sizeof(next));
    sum += kSquares ? next * next : next;
  }
  float part[kParts];
  __builtin_memcpy(part, &sum, sizeof(part));
  for (int l = 0; i < size; ++i, ++l) part[l] += kSquares ? x[i] * x[i] : x[i];
  for (int width = kParts / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) part[l] += part[l + width];
  }
  return part[0];
}

template <class A, NormForm kForm, bool kBias>
GRAMIAN_TARGET inline void write_row(const float* __restrict x, float factor, const NormRows& norm,
                                     typename A::Stored* __restrict y) {
  const float* __restrict weight = norm.weight;
  const float* __restrict bias = norm.bias;
  for (int64_t i = 0; i < norm.size; ++i) {
    const float n = x[i] * factor;
    if constexpr (kForm == NormForm::rms) {
      y[i] = A::narrow(A::widen(A::narrow(n)) * A::widen(A::narrow(weight[i])));
    } else if constexpr (kForm == NormForm::rms_offset) {
      y[i] = A::narrow(n * (weight[i] + 1.0f));
    } else if constexpr (kBias) {
      y[i] = A::narrow(n * weight[i] + bias[i]);
    } else {
      y[i] = A::narrow(n * weight[i]);
    }
  }
}

template <class A>
GRAMIAN_TARGET inline void rows_of(const NormRows& norm, typename A::Stored* y, float* wide) {
  const auto* x = static_cast<const typename A::Stored*>(norm.x);
  const auto size = static_cast<float>(norm.size);
  for (int64_t row = 0; row < norm.rows; ++row, x += norm.size, y += norm.size) {
    widen_row<A>(x, norm.size, wide);
    if (norm.form == NormForm::layer) {
      const float mean = sum_row<false>(wide, norm.size) / size;
      for (int64_t i = 0; i < norm.size; ++i) wide[i] -= mean;
    }
    const float factor = 1.0f / __builtin_sqrtf(sum_row<true>(wide, norm.size) / size + norm.eps);
    if (norm.form == NormForm::rms) {
      write_row<A, NormForm::rms, false>(wide, factor, norm, y);
    } else if (norm.form == NormForm::rms_offset) {
      write_row<A, NormForm::rms_offset, false>(wide, factor, norm, y);
    } else if (norm.bias != nullptr) {
      write_row<A, NormForm::layer, true>(wide, factor, norm, y);
    } else {
      write_row<A, NormForm::layer, false>(wide, factor, norm, y);
    }
  }
}

GRAMIAN_TARGET inline void run(const NormRows& norm, void* y, float* wide) {
  if (norm.type == DType::bf16) {
    rows_of<BF16>(norm, static_cast<BF16::Stored*>(y), wide);
  } else if (norm.type == DType::f16) {
    rows_of<F16>(norm, static_cast<F16::Stored*>(y), wide);
  } else {
    rows_of<F32>(norm, static_cast<F32::Stored*>(y), wide);
  }
}
