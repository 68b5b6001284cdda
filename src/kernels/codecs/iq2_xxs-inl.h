// The search of encode_iq2_xxs() with sub-blocks of one block or of two in the lanes: sums run over a lane's own weights in index order,
// so the bytes are those of iq2_xxs_ref.cpp, which is the text to read first. nearest_neighbour() is each level's own: there points lie in
// the lanes.

constexpr int kSubBlocks = 8, kGroups = 4;
constexpr int kBlocks = kLanes / kSubBlocks;  // at a time

// Weights of the blocks, a sub-block in each lane.
struct Lanes {
  Floats a[kSubBlock];  // see SubBlock in iq2_xxs_ref.cpp
  Floats w[kSubBlock];
  Floats wa[kSubBlock];  // w * a
  Ints signs[kGroups];
  // a and root once more, sub-blocks one after the other.
  alignas(64) float a_rows[kLanes][kSubBlock];
  alignas(64) float root_rows[kLanes][kSubBlock];
};

GRAMIAN_INLINE void to_rows(const Floats* lanes, float (*rows)[kSubBlock]) noexcept {
  for (int i = 0; i < kSubBlock; ++i) {
    for (int b = 0; b < kLanes; ++b) rows[b][i] = lanes[i][b];
  }
}

GRAMIAN_INLINE void make_signs_even(const Floats* x, int group, Lanes& lanes) noexcept {
  const int first = group * kGroup;
  Ints signs = {}, odd = {};
  for (int i = 0; i < kGroup; ++i) {
    const Ints negative = ~(x[first + i] >= 0);
    signs |= negative & (1 << i);
    odd ^= negative;
    lanes.a[first + i] = magnitude(x[first + i]);
  }
  Floats least = lanes.w[first] * x[first] * x[first];
  Ints cheapest = {};
  for (int i = 1; i < kGroup; ++i) {
    const Floats cost = lanes.w[first + i] * x[first + i] * x[first + i];
    const Ints less = cost < least;
    least = less ? cost : least;
    cheapest = less ? Ints{} + i : cheapest;
  }
  for (int i = 0; i < kGroup; ++i) {
    const Ints flip = odd & (cheapest == i);
    lanes.a[first + i] = floats(ints(lanes.a[first + i]) ^ (flip & static_cast<int>(0x80000000u)));
    signs ^= flip & (1 << i);
  }
  lanes.signs[group] = signs & 127;
}

// unsigned_fit() of fit.h with nmax 4, a sub-block in each lane; sub-blocks whose largest value is too small give anything.
GRAMIAN_INLINE Floats fit_four(const Lanes& lanes, Floats largest) noexcept {
  constexpr int kTop = 4;
  const Floats* a = lanes.a;
  const Floats* w = lanes.w;
  Floats inverse = kTop / largest;
  Floats best = {};
  {
    const Floats scale = 1 / inverse;
    for (int i = 0; i < kSubBlock; ++i) {
      const Floats t = a[i] - scale * converted(rounded(inverse * a[i]) & 255);
      best += w[i] * t * t;
    }
  }
  for (int step = -4; step <= 4; ++step) {
    if (step == 0) continue;
    const Floats candidate = (0.1f * static_cast<float>(step) + kTop) / largest;
    const Floats scale = 1 / candidate;
    Floats error = {};
    for (int i = 0; i < kSubBlock; ++i) {
      const Floats t = a[i] - scale * converted(at_most(rounded(candidate * a[i]), kTop));
      error += w[i] * t * t;
    }
    const Ints less = error < best;
    best = less ? error : best;
    inverse = less ? candidate : inverse;
  }
  Floats codes[kSubBlock];  // as bytes hold them
  Floats sum_la = {}, sum_ll = {};
  for (int i = 0; i < kSubBlock; ++i) {
    const Ints code = at_most(rounded(inverse * a[i]), kTop);
    codes[i] = converted(code & 255);
    const Floats l = converted(code);
    sum_la += lanes.wa[i] * l;
    sum_ll += w[i] * l * l;
  }
  for (int sweep = 0; sweep < 5; ++sweep) {
    // A lane without a change finds none in a further sweep either.
    Ints changed = {};
    for (int i = 0; i < kSubBlock; ++i) {
      const Floats p = sum_la - lanes.wa[i] * codes[i];
      const Floats r = sum_ll - w[i] * codes[i] * codes[i];
      const Ints code = at_most(rounded(a[i] * r / p), kTop);
      const Floats m = converted(code);
      const Floats new_la = p + lanes.wa[i] * m, new_ll = r + w[i] * m * m;
      const Ints better =
          (p > 0) & (r > 0) & (m != codes[i]) & (new_la * new_la * sum_ll > sum_la * sum_la * new_ll);
      codes[i] = better ? converted(code & 255) : codes[i];
      sum_la = better ? new_la : sum_la;
      sum_ll = better ? new_ll : sum_ll;
      changed |= better;
    }
    if (!any(changed)) break;
  }
  return sum_ll > 0 ? sum_la / sum_ll : Floats{};
}

// Points and their levels for all groups, and the sums that judge them.
struct Choice {
  Ints code[kGroups];  // as Tables::codes has them
  Floats sum_xq, sum_qq;
};

GRAMIAN_INLINE void choose(const Tables& tables, const Lanes& lanes, Floats inverse, Floats scale,
                           Choice& choice) noexcept {
  for (int g = 0; g < kGroups; ++g) {
    Ints combination = {}, code = {};
    for (int i = kGroup - 1; i >= 0; --i) {
      const Ints level =
          at_least(at_most(rounded(0.5f * (inverse * lanes.a[g * kGroup + i] - 1)), kLevels - 1), 0);
      combination = combination * kLevels + level;
      code = code << 2 | level;
    }
    for (int b = 0; b < kLanes; ++b) {
      const auto u = static_cast<size_t>(combination[b]);
      if (tables.point[u] >= 0) continue;
      code[b] = tables.codes[nearest_neighbour(tables, tables.neighbours[u], lanes.a_rows[b] + g * kGroup,
                                               lanes.root_rows[b] + g * kGroup, scale[b])];
    }
    choice.code[g] = code;
  }
  choice.sum_xq = choice.sum_qq = Floats{};
  for (int g = 0; g < kGroups; ++g) {
    for (int i = 0; i < kGroup; ++i) {
      const Floats q = converted((choice.code[g] >> (2 * i) & 3) * 2 + 1);
      choice.sum_xq += lanes.wa[g * kGroup + i] * q;
      choice.sum_qq += lanes.w[g * kGroup + i] * q * q;
    }
  }
}

// The point that has this code.
inline uint32_t point_of(const Tables& tables, int code) noexcept {
  int combination = 0;
  for (int i = kGroup - 1; i >= 0; --i) combination = combination * kLevels + (code >> (2 * i) & 3);
  return static_cast<uint32_t>(tables.point[static_cast<size_t>(combination)]);
}

GRAMIAN_INLINE void keep(Ints mask, const Choice& from, Choice& kept) noexcept {
  for (int g = 0; g < kGroups; ++g) kept.code[g] = mask ? from.code[g] : kept.code[g];
}

// x, importance [256 · count], count <= kBlocks.
GRAMIAN_TARGET void encode(const Tables& tables, const float* x, const float* importance, int count,
                           uint8_t* out) noexcept {
  Floats mean = {};
  for (int block = 0; block < count; ++block) {
    float squares = 0;
    for (int i = 0; i < kBlock; ++i) squares += x[block * kBlock + i] * x[block * kBlock + i];
    for (int b = 0; b < kSubBlocks; ++b) mean[block * kSubBlocks + b] = squares / kBlock;
  }

  Lanes lanes;
  Floats values[kSubBlock], roots[kSubBlock];
  to_lanes(x, count * kSubBlocks, kSubBlock, values);
  to_lanes(importance, count * kSubBlocks, kSubBlock, lanes.w);
  for (int i = 0; i < kSubBlock; ++i) {
    lanes.w[i] = lanes.w[i] * root(mean + values[i] * values[i]);
    roots[i] = root(lanes.w[i]);
  }
  for (int g = 0; g < kGroups; ++g) make_signs_even(values, g, lanes);
  Floats largest = {};
  for (int i = 0; i < kSubBlock; ++i) {
    lanes.wa[i] = lanes.w[i] * lanes.a[i];
    largest = lanes.a[i] > largest ? lanes.a[i] : largest;
  }
  to_rows(lanes.a, lanes.a_rows);
  to_rows(roots, lanes.root_rows);

  Ints live = largest >= kZeroRun;
  Floats scale = fit_four(lanes, largest);
  const Floats top = scale * 3;
  live &= top > 0;
  Choice choice, kept = {};
  Floats best = {};
  for (int step = -6; step <= 6; ++step) {
    const Floats inverse = (5 + static_cast<float>(step) * 0.1f) / top;
    choose(tables, lanes, inverse, 1 / inverse, choice);
    const Ints better = (choice.sum_qq > 0) & (choice.sum_xq * choice.sum_xq > best * choice.sum_qq);
    scale = better ? choice.sum_xq / choice.sum_qq : scale;
    best = better ? scale * choice.sum_xq : best;
    keep(better, choice, kept);
  }
  const Ints positive = scale > 0;
  choose(tables, lanes, 1 / scale, scale, choice);
  keep(positive, choice, kept);
  scale = (positive & (choice.sum_qq > 0)) ? choice.sum_xq / choice.sum_qq : scale;
  const Ints negative = scale < 0;
  scale = negative ? -scale : scale;

  for (int block = 0; block < count; ++block, out += kBytes) {
    float scales[kSubBlocks];
    uint32_t words[2 * kSubBlocks] = {};
    for (int b = 0; b < kSubBlocks; ++b) {
      const int lane = block * kSubBlocks + b;
      scales[b] = live[lane] != 0 ? scale[lane] : 0;
      for (int g = 0; g < kGroups && live[lane] != 0; ++g) {
        const auto signs = static_cast<uint32_t>(lanes.signs[g][lane] ^ (negative[lane] & 127));
        words[2 * b] |= point_of(tables, kept.code[g][lane]) << (8 * g);
        words[2 * b + 1] |= signs << (7 * g);
      }
    }
    store_block(scales, words, out);
  }
}
