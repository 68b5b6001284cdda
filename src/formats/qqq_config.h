// The `quantization_config` object that QQQ loaders read (GPT-QModel 7.7.0; vLLM before September 2025 needs `wbits`).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/linear_format.h"

namespace gramian::qqq {

// Of a quantized head: int8 codes with a scale for each row, as compressed-tensors stores them.
GridOptions head_grid();

// The object as stored in config.json and, alone, in quantize_config.json.
nlohmann::ordered_json quantization_config(const QuantizationFields& fields);

// What a quantization_config says, or nothing when it is of another method. Accepts the original project's three fields.
// Throws unsupported for another setting, naming `where`.
std::optional<StoredFormat> read_config(const nlohmann::ordered_json& fields, const std::string& where);

}  // namespace gramian::qqq
