// Tensors that a published checkpoint stores in fewer bits than a loader computes with. They are decoded one by one, or one
// matrix of a stack at a time, while they are read; everybody else sees values. Two kinds:
//
//   FP8 (DeepSeek-V3's `fp8` with `weight_block_size`)
//     NAME            F8_E4M3 [.., out, in]
//     NAME_scale_inv  F32, BF16 or F16 [.., ⌈out/b0⌉, ⌈in/b1⌉], a factor for each block of b0 × b1, 128 × 128 by default
//     value = code · factor of its block, f32
//   MXFP4 (gpt_oss' `mxfp4`; OCP Microscaling 1.0)
//     NAME_blocks     U8 [experts, out, in/32, 16]: E2M1 codes, two a byte, the first in the low nibble
//     NAME_scales     U8 [experts, out, in/32]: s means 2^(s - 127)
//     value of NAME [experts, in, out] (transposed) = code · scale, bf16, exact
//
// and in GGUF files (formats/gguf/model_reader.h) blocks of GGML's codecs, f32, exact, whose rows may be in another order and whose
// values may be one too large.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "formats/safetensors.h"
#include "kernels/codecs/codec.h"

namespace gramian {

struct TensorEncoding {
  enum class Kind { fp8_blocks, mxfp4, ggml };
  Kind kind = Kind::fp8_blocks;
  StoredTensor codes;
  StoredTensor scales;
  int64_t block_rows = 128;  // fp8_blocks
  int64_t block_columns = 128;
  const Codec* codec = nullptr;  // ggml: of `codes`, whose shape is that of the values; there are no `scales`
  int64_t heads = 0;             // ggml: rows are heads whose rotary pairs lie side by side; 0: they do not
  bool minus_one = false;        // ggml: values are the stored ones less 1

  // All values, or those of matrix `index` of the stack's first dimension.
  at::Tensor decode() const;
  at::Tensor decode_matrix(int64_t index) const;
};

// Whether config.json's quantization_config is of a kind that is decoded while reading (quant_method `fp8` with block scales,
// or `mxfp4`). Throws unsupported, naming `where`, for another form of these two.
bool is_decoded_source(const nlohmann::ordered_json& config, const std::string& where);

// Puts one entry of values, with its encoding, in place of codes and scales: NAME and NAME_scale_inv, or NAME_blocks and
// NAME_scales. Codes of these names are never taken as values: throws corrupt_data listing codes without scales, scales without
// codes, and scales of another shape or type. `folder` is the checkpoint's.
void fold_encoded(std::map<std::string, StoredTensor>& tensors, const nlohmann::ordered_json& config,
                  const std::string& folder);

}  // namespace gramian
