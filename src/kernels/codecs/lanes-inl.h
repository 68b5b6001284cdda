// What each_wide_level.h gives on its vectors at either width.

GRAMIAN_INLINE Ints ints(Floats value) noexcept { return reinterpret_cast<Ints>(value); }
GRAMIAN_INLINE Floats floats(Ints bits) noexcept { return reinterpret_cast<Floats>(bits); }
GRAMIAN_INLINE Floats magnitude(Floats value) noexcept { return floats(ints(value) & 0x7fffffff); }
GRAMIAN_INLINE Floats converted(Ints value) noexcept { return __builtin_convertvector(value, Floats); }
// As nearest() of rounding.h.
GRAMIAN_INLINE Ints rounded(Floats value) noexcept {
  return (ints(value + 12582912.0f) & 0x007fffff) - 0x00400000;
}

// Up to kLanes runs of `length` values -> lanes [length], run r in lane r; the last run fills the lanes that are left.
GRAMIAN_INLINE void to_lanes(const float* runs, int count, int length, Floats* lanes) noexcept {
  for (int r = 0; r < kLanes; ++r) {
    const float* run = runs + (r < count ? r : count - 1) * length;
    for (int i = 0; i < length; ++i) lanes[i][r] = run[i];
  }
}
