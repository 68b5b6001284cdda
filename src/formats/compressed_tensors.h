// compressed-tensors 0.20 (vLLM, transformers with the package), integer weights, N outputs, K inputs:
//
//   kind            bits   activations   tensors
//   pack-quantized  4, 8   as they come  .weight_packed i32 [N, K·bits/32], codes + 2^(bits-1), a stream of bits along each row
//                                        .weight_zero_point i32 [N·bits/32, groups], where asymmetric: zeros + 2^(bits-1), a
//                                          stream of bits down each column
//                                        .weight_shape i64 [2]: N, K
//   int-quantized   4, 8   int8 by row   .weight i8 [N, K], codes
//   both                                 .weight_scale [N, groups], of the model's type
//
// Dequantized weight = scale · (code - zero). One group is `channel`, more are `group`.
#pragma once

#include "formats/linear_format.h"

namespace gramian {

const LinearFormat& compressed_tensors_format();

}  // namespace gramian
