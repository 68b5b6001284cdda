// The names that GGUF files give to the tensors of a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gramian::gguf {

struct MappedName {
  std::string name;
  int64_t expert = -1;  // which matrix of the stack `name`; -1: the whole tensor
};

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight"; "model.layers.0.mlp.experts.5.up_proj.weight" -> expert 5 of
// "blk.0.ffn_up_exps.weight". `model_type`: config.json's; Gemma's norms stand elsewhere. Nothing for names that have no place.
std::optional<MappedName> mapped_name(std::string_view checkpoint_name, std::string_view model_type);

// The other way: the name in a checkpoint of this type; of matrix `expert` of a stack, -1 for a whole tensor. Nothing for names that
// have no place there.
std::optional<std::string> checkpoint_name(std::string_view gguf_name, std::string_view model_type,
                                           int64_t expert = -1);

}  // namespace gramian::gguf
