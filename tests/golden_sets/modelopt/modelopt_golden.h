// The cases of the golden set "modelopt", by file. A file that is not there brings none.
#pragma once

#include <filesystem>

namespace gramian::golden {

// gptq_hessian, local_hessian and imatrix.safetensors: sums against the peer's and float64.
void collect_statistics(const std::filesystem::path& root);
// imatrix.safetensors: blocks of IQ2_XXS from the anchored encoder.
void collect_encoders(const std::filesystem::path& root);
// nvfp4_qdq and local_hessian.safetensors: packed NVFP4 bytes, and block scales found by searches.
void collect_nvfp4(const std::filesystem::path& root);
// gptq_update.safetensors: the factor, and error compensation on NVFP4 and IQ2_XXS.
void collect_updates(const std::filesystem::path& root);
// kl_eval.safetensors: KL of positions and the interval of a paired difference.
void collect_kl(const std::filesystem::path& root);
// delta_rule.safetensors: both forms against the peer's float64, and its float32 forms against it.
void collect_delta_rule(const std::filesystem::path& root);
// linear_attention_layers.safetensors: whole mixers against the peer's outputs.
void collect_linear_attention(const std::filesystem::path& root);

}  // namespace gramian::golden
