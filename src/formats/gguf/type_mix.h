// The mixtures of types that llama.cpp's users know by names like Q4_K_M: most matrices get one type, those whose errors cost more a
// better one, by what a matrix is and where its layer stands. Rules: llama.cpp at ggml 0.25.3, for types that there are here.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/codecs/codec.h"

namespace gramian::gguf {

struct TypeMix {
  const char* name;    // in lower case
  const char* type;    // of most matrices
  uint32_t file_type;  // general.file_type
};

const std::vector<TypeMix>& type_mixes();
// nullptr: none of this name, in any case.
const TypeMix* find_type_mix(const std::string& name);

// The types of matrices, by their names in the checkpoint; `names` in the order of the layers, those without a place in GGUF are left
// out. `config`: config.json. Where a type does not divide a matrix' rows, the caller finds the next one.
std::map<std::string, const Codec*> mixed_types(const TypeMix& mix, const std::vector<std::string>& names,
                                                const nlohmann::ordered_json& config);

}  // namespace gramian::gguf
