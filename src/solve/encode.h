// Weights as blocks of a GGML codec: each row encoded as it is, or block after block with the errors of finished blocks carried
// into the columns behind them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/parallel.h"
#include "kernels/codecs/codec.h"
#include "solve/factor.h"
#include "solve/quantized.h"

namespace gramian {

// What a codec weighs the errors of a matrix' columns with.
struct ColumnImportance {
  at::Tensor weights;        // f32 [K]; undefined: the codec's own rule without importance
  int64_t without_data = 0;  // columns that calibration never excited
};

// Mean squares of a layer's inputs: `squares` [K], Σ x², divided in f32 by the `tokens` behind them, as llama.cpp divides them. A
// column of zeros alone gets 1e-4 of the mean, so that no block is without weight; all get 1 where nothing was ever excited.
ColumnImportance mean_squares(const at::Tensor& squares, int64_t tokens);

// The codec for rows of `columns` where `asked` does not divide them: llama.cpp's choice, F16 in the end.
const Codec& fitting_codec(const Codec& asked, int64_t columns);

// blocks u8 [N, row bytes] -> f32 [N, columns].
at::Tensor decode_blocks(const Codec& codec, const at::Tensor& blocks, int64_t columns, ThreadPool* pool);

// weight [N, K] of any float type, K a multiple of grid.codec's block. A codec that needs importance gets ones where none is given. A
// block that the importance would turn into zeros is encoded with ones. Throws numerical, with the place, for weights that are not
// finite or that leave the codec's range.
QuantizedLinear solve_encode(const at::Tensor& weight, const ColumnImportance& importance,
                             const GridOptions& grid, ThreadPool& pool);

// GPTQ with whole blocks as steps: a block of columns g is encoded jointly, E_g = (W_g - Q_g) U_gg⁻¹, and the columns behind it become
// W - E_g U_g. (With blocks of one column this is solve_gptq()'s rule.) `factor` in natural order, factor.ok(); `hessian` f32
// [K, K] is read by options.importance_weighted alone: errors are then weighted with sqrt(max(H_jj, 1e-4 · mean)).
QuantizedLinear solve_gptq_blocks(const at::Tensor& weight, const Factor& factor, const at::Tensor& hessian,
                                  int64_t tokens, const SolveOptions& options, ThreadPool& pool);

}  // namespace gramian
