// A GGUF file as a model, in the forms that a Hugging Face folder has: config.json, tensors under their names there, and the files of the
// tokenizer. Of a file in parts (X-00001-of-00003.gguf) any part may be named; all must be there.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/gguf/gguf.h"
#include "formats/safetensors.h"

namespace gramian::gguf {

// Whether `model` is a file whose name ends with ".gguf".
bool is_model_file(const std::filesystem::path& model);

// Where all parts of the model are that `path` is a part of: `path` alone for a name that tells of none.
std::vector<std::filesystem::path> part_paths(const std::filesystem::path& path);

struct ModelFile {
  nlohmann::ordered_json config;
  // Values as they stand, or decoded while they are read (formats/encoded_tensor.h): blocks of fewer bits, heads whose rotary pairs
  // are interleaved, Gemma's norms, which files hold plus one.
  std::map<std::string, StoredTensor> tensors;
};

// Throws what File throws; unsupported naming the key, tensor or type for what has no counterpart here; corrupt_data for a part
// that is missing, or metadata that contradict each other or the tensors.
ModelFile open_model(const std::filesystem::path& path);

// config.json's fields. `files`: the parts, for what only tensors tell. Throws as open_model().
nlohmann::ordered_json model_config(const Metadata& metadata, const std::vector<File>& files,
                                    const std::string& where);

// The files beside a model's weights, by name, as far as the metadata tell them: tokenizer.json, tokenizer_config.json,
// generation_config.json. A tokenizer of a kind that is not built is left out. Throws corrupt_data.
std::map<std::string, std::string> side_files(const std::filesystem::path& path);
// tokenizer.json's text; nothing where the file has no tokenizer, or one of a kind that is not built.
std::optional<std::string> tokenizer_json(const Metadata& metadata, const std::string& where);

}  // namespace gramian::gguf
