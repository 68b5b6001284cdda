// GPTQ packed linear (AutoGPTQ, GPT-QModel 7.7.0, vLLM), N outputs, K inputs, codes of 2, 3, 4 or 8 bits.
//
//   tensor     type  shape               content
//   .qweight   i32   [K·bits/32, N]      codes, a stream of bits down each column
//   .qzeros    i32   [groups, N·bits/32] zero points, a stream of bits along each row
//   .scales    f16   [groups, N]
//   .g_idx     i32   [K]                 the group of each input
//   .bias      f16   [N]                 only where the layer has one
//
// Dequantized weight = scale · (code - zero), codes and zeros unsigned. `gptq_v2` stores zeros as they are, `gptq` one less.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "solve/quantized.h"

namespace gramian::gptq {

enum class Version { v1, v2 };

struct Packed {
  at::Tensor qweight, qzeros, scales, g_idx;
  at::Tensor bias;  // undefined where the layer has none
};

// K and N must be multiples of 32. Returns why not and the remedy, or an empty string when it fits.
std::string unfit_reason(int64_t n, int64_t k);

// Throws unsupported (with `name`) for a zero point of 0 in version 1, whose field would be -1: readers that subtract in whole
// words borrow it from the next channel. Throws numerical where a scale or bias leaves fp16.
Packed pack(const QuantizedLinear& module, const at::Tensor& bias, Version version, const std::string& name);

// The inverse, without the bias; scales are f32 of what is stored. Version 1 is undone as GPT-QModel does it, by whole words of
// 2, 4 and 8 bits, so that its own files are read right. Throws corrupt_data, naming tensor, for other types or shapes, group
// indices out of range, and scales that are not finite.
QuantizedLinear unpack(const Packed& packed, int bits, Version version, int64_t n, int64_t k,
                       const std::string& name);

}  // namespace gramian::gptq
