#include "formats/model_files.h"

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf/model_reader.h"

namespace gramian {
namespace fs = std::filesystem;

std::map<std::string, std::string> told_files(const fs::path& model) {
  return gguf::is_model_file(model) ? gguf::side_files(model) : std::map<std::string, std::string>();
}

std::optional<std::string> model_text(const fs::path& model, const std::string& name) {
  if (gguf::is_model_file(model)) {
    auto files = told_files(model);
    const auto found = files.find(name);
    return found == files.end() ? std::nullopt : std::optional(std::move(found->second));
  }
  if (model.empty() || !fs::exists(model / name)) return std::nullopt;
  return read_text(model / name);
}

std::string model_text_place(const fs::path& model, const std::string& name) {
  return gguf::is_model_file(model) ? model.string() + ": " + name : (model / name).string();
}

Tokenizer open_tokenizer(const fs::path& model) {
  constexpr const char* kName = "tokenizer.json";
  if (!gguf::is_model_file(model)) return Tokenizer(model / kName);
  const auto text = model_text(model, kName);
  if (!text)
    throw Error(ErrorKind::invalid_argument, model.string(), "has no tokenizer of a kind that is built",
                "give ready rows of token ids, or the Hugging Face folder that the file was made of");
  return Tokenizer::parse(*text, model_text_place(model, kName));
}

}  // namespace gramian
