// What families share whose layers lie around several residual streams and whose attention has an indexer.
#pragma once

#include "models/blocks/stream_layer.h"
#include "models/family.h"

namespace gramian {

// The settings with layer_types in the words of other families: "indexed_attention" is their "full_attention", and some files
// call it so.
nlohmann::ordered_json with_plain_layer_types(const ConfigReader& config);

// One StreamLayer from the spec, which must have streams.
std::unique_ptr<DecoderLayer> stream_layer(const DecoderSpec& spec, const Weights& weights,
                                           const std::string& prefix, int64_t index,
                                           const StreamNames& names);

// How many pools hold `tokens` keys, settings under `pool_key` and `tokens_key`: the latter must be a multiple of the former.
void read_pools(const ConfigReader& config, const std::string& pool_key, const std::string& tokens_key,
                KeyIndexerSpec& index);

}  // namespace gramian
