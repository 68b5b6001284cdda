// What a solver hands to a format: integer codes and their scales, with what the report wants to know.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/codecs/codec.h"
#include "solve/column_order.h"

namespace gramian {

enum class GridKind {
  qqq,  // 4 bits, symmetric: -8..7 in groups of 128, -7..7 and another rule for whole rows (formats/qqq.h)
  integer,  // 2, 3, 4 or 8 bits, symmetric or with zero points, groups of any size or whole rows alike
  nvfp4,    // 4-bit floats, groups of 16 with scales in E4M3, one factor over all (kernels/nvfp4/nvfp4.h)
  fp8,      // 8-bit floats (E4M3), one scale per row
  ggml,     // blocks of a codec (kernels/codecs/codec.h), encoded as a whole
};
const char* to_text(GridKind kind);
// Whether codes stand for floats (solve/float_grids.h).
constexpr bool is_float(GridKind kind) { return kind == GridKind::nvfp4 || kind == GridKind::fp8; }

struct GridOptions {
  GridKind kind = GridKind::qqq;
  int bits = 4;
  bool symmetric = true;
  // Columns that share a scale, -1 for the whole row. Of an integer grid the last group may be smaller.
  int64_t group_size = 128;
  // Exponent of the error norm of the scale search; 0 takes the scale from the largest magnitude.
  double mse = 2.4;
  // GPT-QModel 7.7.0's one-sided range for groups without negative entries, instead of the full symmetric
  // range.
  bool one_sided_range = false;
  // The type that scales are stored in: they are rounded to it before codes are chosen. kFloat: not at all.
  at::ScalarType scale_type = at::kFloat;
  // GPT-QModel's rule: codes are chosen for scales that storing rounds later.
  bool unrounded_scales = false;
  // What the runtime multiplies with: 16 for activations as they come, 8 for rows rounded to int8, 0 for what the format has.
  int activation_bits = 0;
  // ggml: the type of the blocks, which decides bits and group_size (its block).
  const Codec* codec = nullptr;
  bool anchored = false;  // ggml: Codec::anchored where the codec has it, instead of the search
};

// How solve/scale_search.h chooses the scales of NVFP4's blocks.
struct ScaleSearch {
  enum class Candidates {
    largest,    // no search: the block's largest magnitude becomes the largest value
    all,        // every scale that there is
    multiples,  // of that of the largest magnitude, evenly from `start` to `stop`
  };
  Candidates candidates = Candidates::all;
  double start = 0.25, stop = 4.0;
  double step = 0.1;  // at most; ⌈(stop - start) / step⌉ + 1 multiples
  std::vector<float> multiples() const;
  // 0 < start <= stop, step > 0, and no more multiples than there are scales.
  bool sound() const;
};

struct SolveOptions {
  GridOptions grid;
  ScaleSearch search = {};  // nvfp4 alone; what follows is for the other grids
  // ggml under error compensation: codes are chosen by the error weighted with the roots of H's diagonal.
  bool importance_weighted = false;
  // λ = damp_percent · mean(diag H), raised by damp_step · mean until the matrix factors.
  double damp_percent = 0.005;
  double damp_step = 0.001;
  ColumnOrder order = ColumnOrder::natural;
  // All group scales from the weights before any error compensation.
  bool static_groups = false;
  // Clear the weights of columns that calibration never excited, as GPT-QModel does; else they are rounded.
  bool clear_dead_columns = false;
  // Sweeps of the last pass over codes and, with refine_scales, scales (solve/refine.h); 0: none.
  int refine = 0;
  bool refine_scales = true;
  // Let error compensation fill groups of weights that are all zero, as GPT-QModel does; else they stay zero.
  bool fill_zero_groups = false;
};

struct QuantizedLinear {
  at::Tensor codes;  // int8 [N, K], signed: -2^(bits-1) and up
  at::Tensor scale;  // f32 [N, groups], groups = K / group_size, rounded up
  at::Tensor zero;   // int8 [N, groups], signed as the codes are; undefined on symmetric grids, where it is 0
  at::Tensor group_index;  // int32 [K], the group of each column; undefined where that is k / group_size
  // f32 [N]: QQQ's channel scales that the codes were chosen for; undefined where they follow from the codes.
  at::Tensor channel_scale;
  int bits = 4;
  int64_t group_size = 0;  // resolved: K for one scale per row
  // NVFP4: codes are E2M1's, `scale` holds E4M3 values, which 1 / global_scale multiplies. 0: another grid.
  float global_scale = 0;
  bool e4m3 = false;  // codes are E4M3's bytes
  // Blocks of a codec, u8 [N, K / block · bytes], which then is all there is: no codes, no scale.
  const Codec* codec = nullptr;
  at::Tensor blocks;
  // (code - zero) · scale, or what codes of floats or the blocks stand for; f32 [N, K].
  at::Tensor weight() const;
  // Σ (w - q)² / (2 U_kk²) over all weights, divided by the number of token rows; NaN where no Hessian was
  // used.
  double loss = std::numeric_limits<double>::quiet_NaN();
  double damp = 0;  // absolute λ added to the diagonal
  int damp_attempts = 0;
  // Mean over median of the Hessian's diagonal without dead columns; NaN where no Hessian was used.
  double diagonal_spread = std::numeric_limits<double>::quiet_NaN();
  int64_t dead_columns = 0;
  int64_t zero_groups = 0;  // groups (rows for one scale per row) whose weights are all zero
  struct Refined {
    int64_t codes = 0;  // changes of codes
    double gain = 0;    // share of the error against the Hessian that went
  };
  std::optional<Refined> refined;  // what solve/refine.h did
  std::string fallback;            // why plain rounding was used instead; empty when it was not
};

}  // namespace gramian
