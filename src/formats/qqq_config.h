// The `quantization_config` object that QQQ loaders read (GPT-QModel 7.7.0; vLLM before September 2025 needs `wbits`).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "solve/quantized.h"

namespace gramian::qqq {

struct ConfigFields {
  SolveOptions solve;
  std::string method;                // how the codes were chosen: "qqq" or "rtn"
  std::vector<std::string> skipped;  // full names of linear layers left unquantized
  bool shared_inputs = true;         // whether modules that read one input were to share their Hessian
};

// The object as stored in config.json and, alone, in quantize_config.json.
nlohmann::ordered_json quantization_config(const ConfigFields& fields);

// Group size (-1 or 128) of a checkpoint's quantization_config, or nothing when `config` has none, or one whose tensors are
// decoded while they are read (formats/encoded_tensor.h). Accepts the original
// project's three fields. Throws unsupported for another method or setting, naming `where`.
std::optional<int64_t> read_group_size(const nlohmann::ordered_json& config, const std::string& where);

// Those of `modules` (full names) that a quantization_config leaves out: what a negative pattern of `dynamic` matches from its
// start, as GPT-QModel reads it, and what a list such as `modules_to_not_convert` names, whole or by some of its parts.
// Throws corrupt_data, naming `where`, for a pattern that is none.
std::set<std::string> excluded_modules(const nlohmann::ordered_json& fields,
                                       const std::vector<std::string>& modules, const std::string& where);

}  // namespace gramian::qqq
