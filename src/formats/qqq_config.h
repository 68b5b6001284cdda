// The `quantization_config` object that QQQ loaders read (GPT-QModel 7.7.0; vLLM before September 2025 needs `wbits`).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/linear_format.h"

namespace gramian::qqq {

// The object as stored in config.json and, alone, in quantize_config.json.
nlohmann::ordered_json quantization_config(const QuantizationFields& fields);

// Group size (-1 or 128) of a quantization_config, or nothing when it is of another method. Accepts the original
// project's three fields. Throws unsupported for another setting, naming `where`.
std::optional<int64_t> read_group_size(const nlohmann::ordered_json& fields, const std::string& where);

}  // namespace gramian::qqq
