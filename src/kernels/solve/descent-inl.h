// One visit of each column of a block, once per CPU level (kernels/each_level.h); GRAMIAN_LANES rows per vector.

typedef float Floats __attribute__((vector_size(GRAMIAN_LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(GRAMIAN_LANES * 4)));

// Rounds to an integer, half to even, below 2^22 in magnitude: 1.5·2^23 takes all fractional digits.
GRAMIAN_TARGET inline Floats rounded(Floats x) {
  const Floats magic = Floats{} + 12582912.0f;
  return (x + magic) - magic;
}

GRAMIAN_TARGET inline void load(Floats& into, const float* from) {
  __builtin_memcpy(&into, from, sizeof into);
}

struct Weights {
  Floats scale, ratio, channel;
  bool two_scales;
};

GRAMIAN_TARGET inline Floats weight_of(const Weights& grid, Floats code) {
  return grid.two_scales ? rounded(code * grid.ratio) * grid.channel : code * grid.scale;
}

GRAMIAN_TARGET inline Floats clamped(Floats x, Floats least, Floats most) {
  x = x > least ? x : least;
  return x < most ? x : most;
}

// The code whose weight is nearest to `target`; where weights lie unevenly the neighbours of the rounded one are looked at too.
GRAMIAN_TARGET inline Floats nearest_code(const Weights& grid, Floats target, Floats least, Floats most) {
  const Floats first = rounded(clamped(target / grid.scale, least, most));
  if (!grid.two_scales) return first;
  Floats best = first, off = target - weight_of(grid, first), error = off * off;
  for (int side = -1; side <= 1; side += 2) {
    const Floats code = clamped(first + static_cast<float>(side), least, most);
    off = target - weight_of(grid, code);
    best = off * off < error ? code : best;
    error = off * off < error ? off * off : error;
  }
  return best;
}

GRAMIAN_TARGET inline int64_t visit(const DescentBlock& block) {
  int64_t changed = 0;
  for (int64_t first = 0; first < kBlockRows; first += GRAMIAN_LANES) {
    Ints count = {};
    for (int64_t j = 0; j < block.columns; ++j) {
      const float* h = block.hessian + j * kBlockColumns;
      Floats step = {};
      if (h[j] > 0) {
        Floats g, odd = {}, taken;
        load(g, block.gradient + j * kBlockRows + first);
        int64_t i = 0;
        for (; i + 2 <= j; i += 2) {
          load(taken, block.step + i * kBlockRows + first);
          g -= taken * h[i];
          load(taken, block.step + (i + 1) * kBlockRows + first);
          odd -= taken * h[i + 1];
        }
        if (i < j) {
          load(taken, block.step + i * kBlockRows + first);
          g -= taken * h[i];
        }
        const int64_t at = block.group[j] * kBlockRows;
        Weights grid = {};
        grid.two_scales = block.ratio != nullptr;
        Floats code, least, most;
        load(code, block.codes + j * kBlockRows + first);
        load(grid.scale, block.scale + at + first);
        load(least, block.least + at + first);
        load(most, block.most + at + first);
        if (grid.two_scales) {
          load(grid.ratio, block.ratio + at + first);
          load(grid.channel, block.channel + first);
        }
        const Floats old = weight_of(grid, code);
        const Floats best = nearest_code(grid, old + (g + odd) / h[j], least, most);
        count -= best != code;
        step = weight_of(grid, best) - old;
        __builtin_memcpy(block.codes + j * kBlockRows + first, &best, sizeof best);
      }
      __builtin_memcpy(block.step + j * kBlockRows + first, &step, sizeof step);
    }
    for (int lane = 0; lane < GRAMIAN_LANES; ++lane) changed += count[lane];
  }
  return changed;
}
