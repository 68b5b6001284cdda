// Model Optimizer's `quant_cfg`: a list of quantizers by pattern, of which later entries win.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/problems.h"
#include "solve/quantized.h"

namespace gramian {

struct QuantConfig {
  std::optional<GridOptions> grid;  // of the weights; nothing where none is quantized
  // A pattern of the modules that stay as they are; empty: none does.
  std::string excluded;
};

// [{quantizer_name: '*mlp*weight_quantizer', cfg: {num_bits: e2m1, block_sizes: {-1: 16, scale_bits: e4m3}}}, ...]. Weights of 4-bit
// floats in blocks of 16, and integers of 4 or 8 bits by channel or in groups, all alike; a quantizer of inputs or outputs that is
// switched on is refused. What is wrong goes into `problems`, under `place`.
QuantConfig read_quant_cfg(const nlohmann::ordered_json& list, const std::string& where,
                           const std::string& place, Problems& problems);

}  // namespace gramian
