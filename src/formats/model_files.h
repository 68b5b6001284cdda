// The small files of a model: they lie in its folder, or are told by the metadata of its GGUF file.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "formats/tokenizer.h"

namespace gramian {

// "tokenizer.json", "generation_config.json", ... of `model`; nothing where it has none, or is empty. Throws io and, for a GGUF file,
// corrupt_data.
std::optional<std::string> model_text(const std::filesystem::path& model, const std::string& name);
// Where it comes from, for messages.
std::string model_text_place(const std::filesystem::path& model, const std::string& name);
// Whether the model is more than its folder: files that must be written for it elsewhere, by name. Empty for a folder.
std::map<std::string, std::string> told_files(const std::filesystem::path& model);
// Throws invalid_argument for a model without a tokenizer, and what Tokenizer throws.
Tokenizer open_tokenizer(const std::filesystem::path& model);

}  // namespace gramian
