#include "formats/gguf/model_reader.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/format.h"
#include "formats/encoded_tensor.h"
#include "formats/gguf/families.h"
#include "formats/gguf/names.h"
#include "formats/json.h"

namespace gramian::gguf {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPartsMax = 99'999;

std::string five_digits(int number) {
  const std::string text = std::to_string(number);
  return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
}

// What the metadata of the parts say of their number, against the names.
void check_parts(const std::vector<File>& files) {
  const auto fail = [](const File& file, const std::string& what) {
    throw Error(ErrorKind::corrupt_data, file.path().string(), what, "download all parts of one model");
  };
  const auto said = files[0].metadata().integer("split.count").value_or(1);
  if (said < 1 || said > kPartsMax || static_cast<size_t>(said) != files.size())
    fail(files[0], str("says that the model has ", said, " parts, by the names it has ", files.size()));
  int64_t tensors = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    tensors += static_cast<int64_t>(files[i].tensors().size());
    if (files.size() > 1 && files[i].metadata().integer("split.no") != static_cast<int64_t>(i))
      fail(files[i], str("does not say that it is part ", i));
  }
  const auto all = files[0].metadata().integer("split.tensors.count");
  if (files.size() > 1 && all && *all != tensors)
    fail(files[0], str("says that the model has ", *all, " tensors, the parts have ", tensors));
}

std::vector<File> open_parts(const fs::path& path) {
  std::vector<File> files;
  for (const fs::path& part : part_paths(path)) files.emplace_back(part);
  check_parts(files);
  return files;
}

// Tensors that are no weights: what they say is in config.json.
bool is_rotary(const std::string& name) {
  return name == "rope_freqs.weight" || name == "rope_factors_long.weight" ||
         name == "rope_factors_short.weight";
}

class Reader {
 public:
  Reader(const fs::path& path, std::vector<File> files) : where_(path.string()), files_(std::move(files)) {
    model_.config = model_config(files_[0].metadata(), files_, where_);
    type_ = model_.config.at("model_type").get<std::string>();
    family_ = family_of_type(type_);
  }

  ModelFile read() {
    for (const File& file : files_) {
      for (const Tensor& tensor : file.tensors()) {
        if (!is_rotary(tensor.name)) add(file, tensor);
      }
    }
    return std::move(model_);
  }

 private:
  // The matrices of a stack of experts become tensors of their own.
  void add(const File& file, const Tensor& tensor) {
    if (tensor.shape.size() == 3) {
      const auto bytes =
          static_cast<size_t>(tensor.bytes() / static_cast<uint64_t>(std::max<int64_t>(1, tensor.shape[0])));
      for (int64_t e = 0; e < tensor.shape[0]; ++e)
        put(file, tensor, e, {tensor.shape[1], tensor.shape[2]},
            tensor.data.subspan(static_cast<size_t>(e) * bytes, bytes));
      return;
    }
    put(file, tensor, -1, tensor.shape, tensor.data);
  }

  void put(const File& file, const Tensor& tensor, int64_t expert, std::vector<int64_t> shape,
           std::span<const std::byte> bytes) {
    const auto name = checkpoint_name(tensor.name, type_, expert);
    if (!name)
      throw Error(ErrorKind::unsupported, where_,
                  str("tensor ", quote_name(tensor.name), " has no name in models of type ", type_),
                  "give the Hugging Face folder that the file was made of");
    // A vector that is one row of a matrix here.
    if (name->ends_with(".shared_expert_gate.weight") && shape.size() == 1) shape = {1, shape[0]};
    StoredTensor stored = plain(file, tensor, shape, bytes);
    const bool minus_one = family_->norms_plus_one && name->ends_with("norm.weight");
    const int64_t heads = heads_of(*name);
    const bool values = tensor.codec->block == 1;
    if (!values || minus_one || heads > 0) {
      if (heads > 0 && (shape.empty() || shape[0] % (2 * heads) != 0))
        throw Error(
            ErrorKind::corrupt_data, where_,
            str("tensor ", quote_name(tensor.name), " has rows that ", heads, " heads cannot share in pairs"),
            "convert the model again");
      TensorEncoding encoding{.kind = TensorEncoding::Kind::ggml, .codes = stored, .scales = {}};
      encoding.codes.dtype = DType::u8;
      encoding.codec = tensor.codec;
      encoding.heads = heads;
      encoding.minus_one = minus_one;
      stored.dtype = DType::f32;
      stored.encoding = std::make_shared<const TensorEncoding>(std::move(encoding));
    }
    if (!model_.tensors.emplace(*name, std::move(stored)).second)
      throw Error(ErrorKind::corrupt_data, where_, str("two tensors would be ", quote_name(*name)),
                  "download all parts of one model");
  }

  static StoredTensor plain(const File& file, const Tensor& tensor, std::vector<int64_t> shape,
                            std::span<const std::byte> bytes) {
    const DType dtype = tensor.codec->name == "F16"    ? DType::f16
                        : tensor.codec->name == "BF16" ? DType::bf16
                                                       : DType::f32;
    return {dtype, std::move(shape), bytes, file.mapping()};
  }

  // Heads whose rows are to be put apart again; 0 for other tensors.
  int64_t heads_of(const std::string& name) const {
    if (!family_->interleaved) return 0;
    if (name.find(".self_attn.q_proj.") != std::string::npos) return model_.config.at("num_attention_heads");
    if (name.find(".self_attn.k_proj.") != std::string::npos) return model_.config.at("num_key_value_heads");
    return 0;
  }

  std::string where_, type_;
  std::vector<File> files_;
  const Family* family_ = nullptr;
  ModelFile model_;
};

}  // namespace

std::vector<fs::path> part_paths(const fs::path& path) {
  const std::string name = path.filename().string();
  constexpr size_t kEnding = sizeof "-00001-of-00003.gguf" - 1;
  int number = 0, count = 0;
  char rest = 0;
  const bool parts =
      name.size() > kEnding &&
      std::sscanf(name.c_str() + (name.size() - kEnding), "-%5d-of-%5d.ggu%c", &number, &count, &rest) == 3 &&
      rest == 'f' && count >= 1 && number >= 1;
  if (!parts) return {path};
  std::vector<fs::path> paths;
  const std::string stem = name.substr(0, name.size() - kEnding);
  for (int i = 1; i <= count; ++i) {
    paths.push_back(path.parent_path() / str(stem, "-", five_digits(i), "-of-", five_digits(count), ".gguf"));
  }
  return paths;
}

bool is_model_file(const fs::path& model) {
  std::error_code ignored;
  return model.extension() == ".gguf" && fs::is_regular_file(model, ignored);
}

ModelFile open_model(const fs::path& path) { return Reader(path, open_parts(path)).read(); }

std::map<std::string, std::string> side_files(const fs::path& path) {
  const File file(part_paths(path)[0]);
  const Metadata& metadata = file.metadata();
  std::map<std::string, std::string> files;
  if (auto text = tokenizer_json(metadata, path.string())) files["tokenizer.json"] = std::move(*text);
  const auto* tokens = metadata.array<std::string>("tokenizer.ggml.tokens");
  Json settings = Json::object(), generation = Json::object();
  for (const auto& [key, token, id] : {std::tuple{"tokenizer.ggml.bos_token_id", "bos_token", "bos_token_id"},
                                       {"tokenizer.ggml.eos_token_id", "eos_token", "eos_token_id"},
                                       {"tokenizer.ggml.padding_token_id", "pad_token", "pad_token_id"},
                                       {"tokenizer.ggml.unknown_token_id", "unk_token", ""}}) {
    const auto value = metadata.integer(key);
    if (!value) continue;
    if (tokens == nullptr || *value < 0 || static_cast<size_t>(*value) >= tokens->size())
      throw Error(ErrorKind::corrupt_data, path.string(), str("the key ", quote_name(key), " names no token"),
                  "convert the model again");
    settings[token] = (*tokens)[static_cast<size_t>(*value)];
    if (*id != '\0') generation[id] = *value;
  }
  if (const std::string* text = metadata.string("tokenizer.chat_template")) settings["chat_template"] = *text;
  const auto dump = [](const Json& json) {
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  };
  if (!settings.empty()) files["tokenizer_config.json"] = dump(settings);
  if (!generation.empty()) files["generation_config.json"] = dump(generation);
  return files;
}

}  // namespace gramian::gguf
