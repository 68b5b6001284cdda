// The turn of one head's entries, at the level that kernels/each_level.h compiles it for.

template <class A, bool kPairs>
GRAMIAN_TARGET inline void turn(const typename A::Stored* __restrict x, const float* __restrict cos,
                                const float* __restrict sin, int64_t half, typename A::Stored* __restrict y) {
  for (int64_t j = 0; j < half; ++j) {
    const int64_t first = kPairs ? 2 * j : j, second = kPairs ? 2 * j + 1 : j + half;
    const float a = A::widen(x[first]), b = A::widen(x[second]);
    y[first] = A::narrow(a * cos[j] - b * sin[j]);
    y[second] = A::narrow(b * cos[j] + a * sin[j]);
  }
}

template <class A>
GRAMIAN_TARGET inline void turn_all(const RopeRows& rope, typename A::Stored* y) {
  for (int64_t row = 0; row < rope.rows; ++row) {
    for (int64_t head = 0; head < rope.heads; ++head) {
      const auto* x =
          static_cast<const typename A::Stored*>(rope.x) + row * rope.row_stride + head * rope.head_stride;
      for (int64_t token = 0; token < rope.tokens; ++token, x += rope.token_stride, y += rope.size) {
        const float* cos = rope.cos + token * rope.half;
        const float* sin = rope.sin + token * rope.half;
        if (rope.pairs) {
          turn<A, true>(x, cos, sin, rope.half, y);
        } else {
          turn<A, false>(x, cos, sin, rope.half, y);
        }
        for (int64_t i = 2 * rope.half; i < rope.size; ++i) y[i] = x[i];
      }
    }
  }
}

GRAMIAN_TARGET inline void run(const RopeRows& rope, void* y) {
  if (rope.type == DType::bf16) {
    turn_all<BF16>(rope, static_cast<BF16::Stored*>(y));
  } else if (rope.type == DType::f16) {
    turn_all<F16>(rope, static_cast<F16::Stored*>(y));
  } else {
    turn_all<F32>(rope, static_cast<F32::Stored*>(y));
  }
}
