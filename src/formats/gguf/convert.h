// A checkpoint as a GGUF file: metadata, tokenizer, and every tensor under GGUF's name and in its order of values.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/log.h"
#include "base/parallel.h"
#include "formats/checkpoint.h"
#include "formats/gguf/gguf.h"

namespace gramian::gguf {

// "llama" of config.json's model_type "mistral". Throws unsupported, naming `where`, for a family that has no names here
// and for a configuration that names none.
std::string architecture(const nlohmann::ordered_json& config, const std::string& where);

// The keys that a program needs to build the model, from config.json. Throws as architecture(), corrupt_data for a value that is
// missing or of another type, unsupported for rotary scaling that GGUF's keys cannot say.
Metadata model_metadata(const nlohmann::ordered_json& config, const std::string& where);

// Adds the keys of a byte-level BPE tokenizer.json and of the chat template. `folder`: the checkpoint's side_folder(). `vocab`: rows of
// the embedding; ids without a token get one that is not used. Returns false, and says so in `log`, where the folder has no tokenizer or one of another kind.
bool add_tokenizer(const std::filesystem::path& folder, const nlohmann::ordered_json& config, int64_t vocab,
                   Metadata& metadata, Log& log);

struct ConvertOptions {
  const Codec* type = nullptr;  // of matrices: F32, F16 or BF16; vectors and routers stay F32
  std::string name;             // general.name
};

// Throws what the parts throw, unsupported for a tensor that has no place in GGUF, numerical for a value that leaves its type.
void convert(const Checkpoint& checkpoint, const std::filesystem::path& output, const ConvertOptions& options,
             ThreadPool& pool, Log& log);

}  // namespace gramian::gguf
