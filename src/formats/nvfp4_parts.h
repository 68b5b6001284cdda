// NVFP4 modules inside compressed-tensors (`nvfp4-pack-quantized`), for activations as they come:
//
//   weight_packed        U8 [N, K/2]: E2M1 codes, the even column in the low nibble
//   weight_scale         F8_E4M3 [N, K/16]
//   weight_global_scale  F32 [1]: 2688 / largest magnitude; a weight is e2m1(code) · (weight_scale · (1 / weight_global_scale))
//
// q, k and v, and gate and up, have one global scale, because runtimes make one matrix of them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "formats/linear_format.h"

namespace gramian::nvfp4_parts {

// Throws invalid_argument, naming the option, for what NVFP4 does not have.
SolveOptions settle(SolveOptions asked);
// Why a module of `k` inputs does not fit; empty when it does.
std::string unfit_reason(int64_t k);
std::vector<PlannedTensor> parts(const LinearShape& shape);
PackedParts pack(const QuantizedLinear& module);
// Throws corrupt_data, naming the tensor, for parts of another type or shape, a scale that is not a positive number, and one that is
// 0.
QuantizedLinear codes(const PackedParts& parts, int64_t n, int64_t k, const std::string& name);
// `weights` of one of config_groups, and whether such a field is NVFP4's.
nlohmann::ordered_json weights_field();
bool is_weights_field(const nlohmann::ordered_json& weights);

}  // namespace gramian::nvfp4_parts
