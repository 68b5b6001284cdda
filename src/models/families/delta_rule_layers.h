// What families share whose layers take turns between attention and a delta rule.
#pragma once

#include "models/family.h"

namespace gramian {

// Sets which layers are recurrent: by layer_types, whose word for attention is `attention`, or where it is not given by
// `otherwise`. `config` must not ask for another activation than silu, which the convolutions have.
void read_recurrent_layers(const ConfigReader& config, DecoderSpec& spec, const std::string& attention,
                           const std::function<bool(int64_t layer)>& otherwise);
// The settings of Kimi's delta rule (linear_num_heads, linear_head_dim), also where the makers of its models nest them under
// linear_attn_config, as those that read_delta_sizes wants.
nlohmann::ordered_json with_kimi_delta_sizes(const ConfigReader& config);
// linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim, linear_conv_kernel_dim.
DeltaSizes read_delta_sizes(const ConfigReader& config, int64_t hidden);

// Qwen 3 Next and 3.5 but for their MLPs: gated attention of norms 1 + w and partly turning heads in every fourth layer, gated
// delta nets in the others.
DecoderSpec describe_qwen_hybrid(const ConfigReader& config, DeltaProjections projections);
// The text settings with an intermediate_size for those that have none: all of their MLPs are mixtures.
nlohmann::ordered_json with_intermediate_size(const ConfigReader& config);

}  // namespace gramian
