// QQQ packed linear (GPT-QModel 7.7.0 and vLLM before September 2025), N outputs, K inputs, codes of 4 bits.
//
//   tensor       type  shape              content
//   .B           i32   [K/16, 2N]         8 codes a word, in 16x64 tiles
//   .s_channel   f32   [1, N]             scale per output channel, permuted inside every 32
//   .s_group     f16   [K/128, N]         grouped only: group scale / s_channel, permuted inside every 64
//   .bias        f16   [N]                plain order, only where the layer has one
//
// Whole-row layout (resolved group size == K): nibble = code & 15, runtime weight v = 16·code,
//   s_channel = scale/16.
// Grouped layout (group size 128 < K): nibble = code + 8, v = clamp(rne(code · s_group), -128, 127).
// Both: dequantized weight = v · s_channel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "solve/quantized.h"

namespace gramian::qqq {

struct Packed {
  at::Tensor B;
  at::Tensor s_channel;
  at::Tensor s_group;  // undefined for the whole-row layout
  at::Tensor bias;     // undefined where the layer has none
};

// A checked layer in plain order, its codes not yet multiplied with the ratios of their groups.
struct Codes {
  at::Tensor values;     // int8 [N, K], -8 to 7
  at::Tensor s_channel;  // f32 [N]
  at::Tensor ratios;     // f32 [K/128, N], finite; undefined for the whole-row layout, where v = 16·code
  at::Tensor bias;       // [N] as stored (f16; bf16 or f32 by other writers), or undefined
};

// What the runtime multiplies with, in plain order.
struct Decoded {
  at::Tensor values;      // int8 [N, K]
  at::Tensor s_channel;   // f32 [N]
  at::Tensor bias;        // as in Codes
  int64_t saturated = 0;  // weights whose integer left int8 and was clamped
  // v · s_channel in f32 [N, K].
  at::Tensor weight() const;
};

// (K mod 128 = 0 and N mod 64 = 0) or (K mod 64 = 0 and N mod 128 = 0); grouped also K mod 128 = 0.
// group_size as configured: -1 or 128. Returns why not and the remedy, or an empty string when it fits.
std::string unfit_reason(int64_t n, int64_t k, int64_t group_size);

// s_channel of the grouped layout: max_k |code · scale| / 127 per row, taken in f32 from the quantized
// weight, so that no runtime integer leaves int8. All-zero rows give 1/127.
at::Tensor channel_scale_from_codes(const QuantizedLinear& module);
// The same from the unquantized weight, GPT-QModel's rule: some integers then leave int8.
at::Tensor channel_scale_from_weight(const at::Tensor& weight);

// channel_scale: f32 [N], used by the grouped layout only. Throws numerical (with `name`) when a stored scale
// or bias is not finite after rounding to its type; only a group whose codes are all zero may overflow, its
// ratio is then stored as 1. Throws internal for shapes or codes that no solver gives (codes outside -8..7).
Packed pack(const QuantizedLinear& module, const at::Tensor& channel_scale, const at::Tensor& bias,
            const std::string& name);

// What cannot be unpacked, one line for each tensor, beginning with `name`: B must be i32 [K/16, 2N]; s_channel [1, N] or
// [N], s_group [K/128, N], bias [N], each of f32, f16 or bf16. An empty or missing s_group means the whole-row layout.
std::vector<std::string> layout_faults(const Packed& packed, int64_t n, int64_t k, const std::string& name);
// Why `packed` cannot be what `group_size` (-1 or 128, as configured) says of module `name`, or an empty string. The order of
// the codes in a word depends on it: where tensors and configuration disagree, one is damaged, and weights would be wrong.
std::string group_fault(const Packed& packed, int64_t k, int64_t group_size, const std::string& name);
// Scales are used as stored. Throws corrupt_data for layout_faults() and for scales that are not finite, but for ratios of
// groups of zeros, which Codes have as 1.
Codes read_codes(const Packed& packed, int64_t n, int64_t k, const std::string& name);
Decoded unpack(const Packed& packed, int64_t n, int64_t k, const std::string& name);
// What the codes stand for.
Decoded decode(const Codes& codes);
// The codes alone, int8 [N, K], plain order, signed.
at::Tensor unpack_codes(const at::Tensor& B, int64_t n, int64_t k, bool grouped);

}  // namespace gramian::qqq
