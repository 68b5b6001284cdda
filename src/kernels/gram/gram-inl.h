// Packing, tiles and their loops, once per arithmetic: included by gram.cpp inside a namespace of its own that says
//   GRAMIAN_TARGET                      attribute naming the instruction set
//   kLanes, Floats                      a vector of f32
//   kTileRows                           rows of a tile: 3 kTileRows sums and 4 operands fit the registers
//   kTilesTogether                      of them under each other, multiplied by one panel of columns after another
//   kPairs                              whether a unit is a pair of bf16 (else an f32)
//   load, broadcast, multiply_add       on units
//
// Panels hold kWidth columns, unit by unit: panel[kDepth][kWidth]. One panel serves as rows and as columns of a tile.
// Includes nothing.

constexpr int kTileVectors = 3;
constexpr int kTileColumns = kTileVectors * kLanes;
constexpr int kBlockRows = kLanes == kBlockWidth ? kBlockWidth : kTileRows;
constexpr int64_t kTokensPerUnit = kPairs ? 2 : 1;
constexpr int64_t kAhead = 4;  // units; rows of X lie in other pages, where the hardware does not look ahead

static_assert(kDepth <= 2 * kChain);
static_assert(kPanel % kTileColumns == 0 && kTileColumns % (kTileRows * kTilesTogether) == 0);
static_assert(kGroup % kTileColumns == 0 && kGroup % kBlockWidth == 0);
static_assert(kBlockWidth % kLanes == 0 && kBlockWidth % kBlockRows == 0 &&
              kBlockWidth / kBlockRows <= kTilesTogether);

template <class F>
GRAMIAN_TARGET inline void pack_panel(const typename F::Stored* first, const typename F::Stored* second,
                                      uint32_t second_mask, int64_t width, Unit* __restrict panel) {
  for (int64_t c = 0; c < width; ++c) {
    if constexpr (kPairs) {
      panel[c] = first[c] | ((static_cast<uint32_t>(second[c]) << 16) & second_mask);
    } else {
      panel[c] = __builtin_bit_cast(uint32_t, F::widen(first[c]));
    }
  }
}

// Columns [begin, end) of up to kDepth units from token `token` on; columns from K on become 0. Returns the units.
template <class F, int64_t kWidth>
GRAMIAN_TARGET inline int64_t pack_typed(const Rows& x, int64_t token, int64_t begin, int64_t end,
                                         Unit* packed) {
  constexpr int64_t kLine = 64 / sizeof(typename F::Stored);
  const int64_t tokens =
      x.count - token < kDepth * kTokensPerUnit ? x.count - token : kDepth * kTokensPerUnit;
  const int64_t depth = (tokens + kTokensPerUnit - 1) / kTokensPerUnit;
  const int64_t valid = (end < x.columns ? end : x.columns) - begin;
  for (int64_t unit = 0; unit < depth; ++unit) {
    const int64_t t = unit * kTokensPerUnit;
    const typename F::Stored* first = x.row<F>(token + t) + begin;
    const bool paired = kPairs && t + 1 < tokens;
    const typename F::Stored* second = paired ? x.row<F>(token + t + 1) + begin : first;
    if (t + (kAhead + 1) * kTokensPerUnit <= tokens) {
      for (int64_t next = 0; next < kTokensPerUnit; ++next) {
        const auto* ahead = x.row<F>(token + t + kAhead * kTokensPerUnit + next) + begin;
        for (int64_t c = 0; c < valid; c += kLine) __builtin_prefetch(ahead + c);
      }
    }
    Unit* panel = packed + unit * kWidth;
    int64_t c = 0;
    for (; c + kWidth <= valid; c += kWidth, panel += kWidth * kDepth)
      pack_panel<F>(first + c, second + c, paired ? ~0u : 0u, kWidth, panel);
    if (c < end - begin) {
      pack_panel<F>(first + c, second + c, paired ? ~0u : 0u, valid - c, panel);
      for (int64_t zero = valid - c; zero < kWidth; ++zero) panel[zero] = 0;
    }
  }
  return depth;
}

template <int64_t kWidth>
GRAMIAN_TARGET int64_t pack(const Rows& x, int64_t token, int64_t begin, int64_t end, Unit* packed) {
  if (kPairs || x.type == DType::bf16) return pack_typed<BF16, kWidth>(x, token, begin, end, packed);
  if (x.type == DType::f16) return pack_typed<F16, kWidth>(x, token, begin, end, packed);
  return pack_typed<F32, kWidth>(x, token, begin, end, packed);
}

// sum = the products of kRows columns at `rows` and kVectors · kLanes at `columns`. Every loop over the sums is
// unrolled in full: otherwise the compiler keeps them in memory, at half the speed.
template <int kRows, int kVectors, int64_t kWidth>
GRAMIAN_TARGET [[gnu::always_inline]] inline void chain(const Unit* rows, const Unit* columns, int64_t depth,
                                                        Floats (&sum)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Floats{};
  }
#pragma GCC unroll 4
  for (int64_t unit = 0; unit < depth; ++unit, rows += kWidth, columns += kWidth) {
    Floats column[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) column[v] = load(columns + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Floats value = broadcast(rows + r);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(value, column[v], sum[r][v]);
    }
  }
}

// A chain's sums: the first of two waits in `waiting`, the last is added to it, if there was a first (else null), and
// to out [kRows][kVectors · kLanes].
template <bool kFirst, int kRows, int kVectors, int64_t kWidth>
GRAMIAN_TARGET [[gnu::noinline]] void tile(const Unit* rows, const Unit* columns, int64_t depth,
                                           Floats (*waiting)[kVectors], float* out, int64_t stride) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(out + r * stride + v * kLanes, 1);
    // Rows of `out` need not begin at a cache line.
    __builtin_prefetch(out + r * stride + kVectors * kLanes - 1, 1);
  }
  Floats sum[kRows][kVectors];
  chain<kRows, kVectors, kWidth>(rows, columns, depth, sum);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kFirst) {
        waiting[r][v] = sum[r][v];
      } else {
        Floats value;
        __builtin_memcpy(&value, out + r * stride + v * kLanes, sizeof value);
        value += waiting != nullptr ? waiting[r][v] + sum[r][v] : sum[r][v];
        __builtin_memcpy(out + r * stride + v * kLanes, &value, sizeof value);
      }
    }
  }
}

// `height` rows of tiles under each other, at most kTilesTogether. All their first chains come before all their last:
// half a panel of rows and half a panel of columns are what the fastest cache (L1) has to hold.
template <int kRows, int kVectors, int64_t kWidth>
GRAMIAN_TARGET inline void tiles(const Unit* rows, const Unit* columns, int64_t depth, int64_t height,
                                 float* out, int64_t stride) {
  Floats waiting[kTilesTogether * kRows][kVectors];
  const bool two = depth > kChain;
  const int64_t start = two ? kChain : 0;
  for (int64_t r = 0; two && r < height; r += kRows)
    tile<true, kRows, kVectors, kWidth>(rows + r, columns, kChain, waiting + r, out + r * stride, stride);
  for (int64_t r = 0; r < height; r += kRows) {
    tile<false, kRows, kVectors, kWidth>(rows + start * kWidth + r, columns + start * kWidth, depth - start,
                                         two ? waiting + r : nullptr, out + r * stride, stride);
  }
}

// A tile that crosses the diagonal or the last row: only as many vectors as rows [i, end) need from column j on, and
// only what belongs to h is added.
GRAMIAN_TARGET inline void edge_tile(const Unit* rows, const Unit* columns, int64_t depth, int64_t i,
                                     int64_t end, int64_t j, float* h, int64_t stride) {
  alignas(64) float out[kTileRows * kTileColumns] = {};
  const int64_t last = (i + kTileRows < end ? i + kTileRows : end) - 1;
  if (last < j + kLanes) {
    tiles<kTileRows, 1, kTileColumns>(rows, columns, depth, kTileRows, out, kTileColumns);
  } else if (last < j + 2 * kLanes) {
    tiles<kTileRows, 2, kTileColumns>(rows, columns, depth, kTileRows, out, kTileColumns);
  } else {
    tiles<kTileRows, 3, kTileColumns>(rows, columns, depth, kTileRows, out, kTileColumns);
  }
  for (int64_t r = 0; i + r <= last; ++r) {
    const int64_t needed = i + r - j + 1 < kTileColumns ? i + r - j + 1 : kTileColumns;
    for (int64_t c = 0; c < needed; ++c) h[(i + r) * stride + j + c] += out[r * kTileColumns + c];
  }
}

// Column c of a packed run of columns.
template <int64_t kWidth>
GRAMIAN_TARGET inline const Unit* column(const Unit* packed, int64_t c) {
  return packed + c / kWidth * (kWidth * kDepth) + c % kWidth;
}

// Rows [top, bottom) of the strip times columns [left, right), packed at `group`.
GRAMIAN_TARGET inline void multiply(const Unit* strip, int64_t top, int64_t bottom, const Unit* group,
                                    int64_t left, int64_t right, int64_t depth, float* h, int64_t stride) {
  constexpr int64_t kHeight = kTileRows * kTilesTogether;
  // Rows above the first column have nothing on their side of the diagonal.
  for (int64_t first = left > top ? left : top; first < bottom; first += kHeight) {
    const Unit* rows = column<kTileColumns>(strip, first - top);
    const int64_t last = first + kHeight < bottom ? first + kHeight : bottom;
    for (int64_t j = left; j < right && j < last; j += kTileColumns) {
      const Unit* columns = column<kTileColumns>(group, j - left);
      if (j + kTileColumns <= first + 1 && first + kHeight <= bottom) {
        tiles<kTileRows, kTileVectors, kTileColumns>(rows, columns, depth, kHeight, h + first * stride + j,
                                                     stride);
        continue;
      }
      for (int64_t i = first; i < last; i += kTileRows) {
        if (j < i + kTileRows) edge_tile(rows + (i - first), columns, depth, i, bottom, j, h, stride);
      }
    }
  }
}

GRAMIAN_TARGET void add_lower(const Rows& x, int64_t begin, int64_t end, float* h, int64_t stride,
                              Workspace& workspace) {
  Unit* const strip = workspace.strip;
  Unit* const group = workspace.group;
  // Strips of even height: columns before a strip are packed anew for each.
  const int64_t strips = (end - begin + kStrip - 1) / kStrip;
  const int64_t height =
      strips > 0 ? ((end - begin + strips - 1) / strips + kPanel - 1) / kPanel * kPanel : 1;
  for (int64_t top = begin; top < end; top += height) {
    const int64_t bottom = top + height < end ? top + height : end;
    for (int64_t token = 0; token < x.count; token += kDepth * kTokensPerUnit) {
      const int64_t depth = pack<kTileColumns>(x, token, top, bottom, strip);
      for (int64_t left = 0; left < top; left += kGroup) {
        const int64_t right = left + kGroup < top ? left + kGroup : top;
        pack<kTileColumns>(x, token, left, right, group);
        multiply(strip, top, bottom, group, left, right, depth, h, stride);
      }
      for (int64_t left = top; left < bottom; left += kGroup) {
        const int64_t right = left + kGroup < bottom ? left + kGroup : bottom;
        multiply(strip, top, bottom, column<kTileColumns>(strip, left - top), left, right, depth, h, stride);
      }
    }
  }
}

GRAMIAN_TARGET void add_blocks(const Rows& x, int64_t begin, int64_t end, float* blocks,
                               Workspace& workspace) {
  for (int64_t left = begin * kBlockWidth; left < end * kBlockWidth; left += kGroup) {
    const int64_t right = left + kGroup < end * kBlockWidth ? left + kGroup : end * kBlockWidth;
    for (int64_t token = 0; token < x.count; token += kDepth * kTokensPerUnit) {
      const int64_t depth = pack<kBlockWidth>(x, token, left, right, workspace.group);
      for (int64_t c = left; c < right; c += kBlockWidth) {
        const Unit* columns = column<kBlockWidth>(workspace.group, c - left);
        tiles<kBlockRows, kBlockWidth / kLanes, kBlockWidth>(columns, columns, depth, kBlockWidth,
                                                             blocks + c * kBlockWidth, kBlockWidth);
      }
    }
  }
}
