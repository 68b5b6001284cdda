// The searches of fit.h with a run in each lane: a lane's operations are those of fit.cpp, in its order.

constexpr int kLengthMax = 32;

GRAMIAN_INLINE void store(const Floats* codes, Floats value, int count, int length, uint8_t* to,
                          float* to_value) noexcept {
  for (int r = 0; r < count; ++r) {
    to_value[r] = value[r];
    for (int i = 0; i < length; ++i) to[r * length + i] = static_cast<uint8_t>(codes[i][r]);
  }
}

// Codes for one candidate; see affine_fit().
GRAMIAN_INLINE void round_all(const Floats* x, Floats inverse, Floats min, int nmax, int n,
                              Floats* codes) noexcept {
  for (int i = 0; i < n; ++i)
    codes[i] = converted(at_least(at_most(rounded(inverse * (x[i] - min)), nmax), 0));
}

template <bool kAbsolute>
GRAMIAN_INLINE Floats error_of(const Floats* x, const Floats* w, const Floats* codes, Floats scale,
                               Floats min, int n) noexcept {
  Floats sum = {};
  for (int i = 0; i < n; ++i) {
    const Floats difference = scale * codes[i] + min - x[i];
    sum += w[i] * (kAbsolute ? magnitude(difference) : difference * difference);
  }
  return sum;
}

template <bool kAbsolute>
GRAMIAN_INLINE void affine_lanes(const AffineRule& rule, const Floats* x, const Floats* w, int n,
                                 Floats* codes, Floats* scale_out, Floats* minus_min) noexcept {
  Floats min = x[0], max = x[0], sum_w = w[0], sum_x = w[0] * x[0];
  for (int i = 1; i < n; ++i) {
    min = x[i] < min ? x[i] : min;
    max = x[i] > max ? x[i] : max;
    sum_w += w[i];
    sum_x += w[i] * x[i];
  }
  min = min > 0 ? Floats{} : min;
  const Ints live = max > min;
  const auto nmax = static_cast<float>(rule.nmax);
  const Floats inverse = nmax / (max - min);
  Floats scale = 1 / inverse;
  Floats kept_inverse = inverse, kept_min = min;  // what the codes come of
  round_all(x, inverse, min, rule.nmax, n, codes);
  Floats best = error_of<kAbsolute>(x, w, codes, scale, min, n);
  for (int step = 0; step <= rule.last; ++step) {
    Floats l[kLengthMax];
    const Floats candidate = (rule.start + rule.step * static_cast<float>(step) + nmax) / (max - min);
    round_all(x, candidate, min, rule.nmax, n, l);
    Floats sum_l = {}, sum_ll = {}, sum_xl = {};
    for (int i = 0; i < n; ++i) {
      const Floats wl = w[i] * l[i];
      sum_l += wl;
      sum_ll += wl * l[i];
      sum_xl += wl * x[i];
    }
    const Floats determinant = sum_w * sum_ll - sum_l * sum_l;
    Floats this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    Floats this_min = (sum_ll * sum_x - sum_l * sum_xl) / determinant;
    const Ints positive = this_min > 0;
    this_scale = positive ? sum_xl / sum_ll : this_scale;
    this_min = positive ? Floats{} : this_min;
    const Floats error = error_of<kAbsolute>(x, w, l, this_scale, this_min, n);
    const Ints better = live & (determinant > 0) & (error < best);
    kept_inverse = better ? candidate : kept_inverse;
    kept_min = better ? min : kept_min;
    best = better ? error : best;
    scale = better ? this_scale : scale;
    min = better ? this_min : min;
  }
  round_all(x, kept_inverse, kept_min, rule.nmax, n, codes);
  for (int i = 0; i < n; ++i) codes[i] = live ? codes[i] : Floats{};
  *scale_out = live ? scale : Floats{};
  *minus_min = -min;
}

template <int kLength, bool kAbsolute>
GRAMIAN_TARGET void affine_runs(const AffineRule& rule, const float* x, const float* w, int runs,
                                uint8_t* codes, float* scale, float* minus_min) noexcept {
  for (int r = 0; r < runs; r += kLanes) {
    const int count = runs - r < kLanes ? runs - r : kLanes;
    Floats x_lanes[kLength], w_lanes[kLength], code_lanes[kLength], scale_lanes, min_lanes;
    to_lanes(x + r * kLength, count, kLength, x_lanes);
    to_lanes(w + r * kLength, count, kLength, w_lanes);
    affine_lanes<kAbsolute>(rule, x_lanes, w_lanes, kLength, code_lanes, &scale_lanes, &min_lanes);
    store(code_lanes, scale_lanes, count, kLength, codes + r * kLength, scale + r);
    for (int i = 0; i < count; ++i) minus_min[r + i] = min_lanes[i];
  }
}

// The level that a value rounds to; see signed_fit().
GRAMIAN_INLINE Floats signed_level(Floats x, Floats inverse, int nmax) noexcept {
  return converted(at_least(at_most(rounded(inverse * x), nmax - 1), -nmax));
}

// Sums for one candidate.
GRAMIAN_INLINE void try_inverse(const Floats* x, const Floats* w, const Floats* wx, Floats inverse, int nmax,
                                int n, Floats& sum_xl, Floats& sum_ll) noexcept {
  sum_xl = sum_ll = Floats{};
  for (int i = 0; i < n; ++i) {
    const Floats l = signed_level(x[i], inverse, nmax);
    sum_xl += wx[i] * l;
    sum_ll += w[i] * l * l;
  }
}

GRAMIAN_INLINE void signed_lanes(int nmax, const Floats* x, const Floats* w, int n, Floats* codes,
                                 Floats* scale_out) noexcept {
  Floats largest = {}, value = {}, wx[kLengthMax];
  for (int i = 0; i < n; ++i) {
    wx[i] = w[i] * x[i];
    const Ints larger = magnitude(x[i]) > largest;
    largest = larger ? magnitude(x[i]) : largest;
    value = larger ? x[i] : value;
  }
  const Ints live = ~(largest < kZeroRun);
  const auto top = static_cast<float>(nmax);
  Floats sum_xl, sum_ll, inverse = -top / value;  // of the codes kept
  try_inverse(x, w, wx, inverse, nmax, n, sum_xl, sum_ll);
  Floats scale = sum_ll != 0 ? sum_xl / sum_ll : Floats{};
  Floats best = scale * sum_xl;
  for (int step = -9; step <= 9; ++step) {
    if (step == 0) continue;
    const Floats candidate = -(top + 0.1f * static_cast<float>(step)) / value;
    try_inverse(x, w, wx, candidate, nmax, n, sum_xl, sum_ll);
    const Ints better = (sum_ll > 0) & (sum_xl * sum_xl > best * sum_ll);
    inverse = better ? candidate : inverse;
    scale = better ? sum_xl / sum_ll : scale;
    best = better ? scale * sum_xl : best;
  }
  for (int i = 0; i < n; ++i) codes[i] = live ? signed_level(x[i], inverse, nmax) + top : Floats{};
  *scale_out = live ? scale : Floats{};
}

template <int kLength>
GRAMIAN_TARGET void signed_runs(int nmax, const float* x, const float* w, int runs, uint8_t* codes,
                                float* scale) noexcept {
  for (int r = 0; r < runs; r += kLanes) {
    const int count = runs - r < kLanes ? runs - r : kLanes;
    Floats x_lanes[kLength], w_lanes[kLength], code_lanes[kLength], scale_lanes;
    to_lanes(x + r * kLength, count, kLength, x_lanes);
    to_lanes(w + r * kLength, count, kLength, w_lanes);
    signed_lanes(nmax, x_lanes, w_lanes, kLength, code_lanes, &scale_lanes);
    if (codes != nullptr) {
      store(code_lanes, scale_lanes, count, kLength, codes + r * kLength, scale + r);
    } else {
      for (int i = 0; i < count; ++i) scale[r + i] = scale_lanes[i];
    }
  }
}

GRAMIAN_TARGET void affine_fit(const AffineRule& rule, const float* x, const float* w, int runs, int length,
                               uint8_t* codes, float* scale, float* minus_min) noexcept {
  if (length == 16) {
    const auto fit = rule.absolute ? affine_runs<16, true> : affine_runs<16, false>;
    return fit(rule, x, w, runs, codes, scale, minus_min);
  }
  const auto fit = rule.absolute ? affine_runs<32, true> : affine_runs<32, false>;
  fit(rule, x, w, runs, codes, scale, minus_min);
}

GRAMIAN_TARGET void signed_fit(int nmax, const float* x, const float* w, int runs, int length, uint8_t* codes,
                               float* scale) noexcept {
  const auto fit = length == 16 ? signed_runs<16> : signed_runs<32>;
  fit(nmax, x, w, runs, codes, scale);
}
