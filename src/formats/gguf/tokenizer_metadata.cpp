// The vocabulary of tokenizer.json in GGUF's keys.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf/convert.h"
#include "formats/json.h"
#include "formats/tokenizer.h"
#include "formats/tokenizer/json_node.h"

namespace gramian::gguf {
namespace {

namespace fs = std::filesystem;
using tokenizer::JsonNode;

// tokenizer.ggml.token_type
enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

// GGUF names the rule that splits text into words instead of telling it.
struct Splitting {
  const char* regex;
  const char* name;
};
constexpr Splitting kSplittings[] = {
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "llama-bpe"},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "qwen2"}};

// The name of the splitting rule; nothing for one that has none here.
std::optional<std::string> splitting(const JsonNode& pre_tokenizer) {
  if (!pre_tokenizer.has_value()) return std::nullopt;
  std::vector<JsonNode> parts = {pre_tokenizer};
  if (pre_tokenizer.type() == "Sequence") parts = pre_tokenizer["pretokenizers"].items();
  if (parts.empty() || parts.back().type() != "ByteLevel") return std::nullopt;
  if (parts.size() == 1) return "gpt-2";
  if (parts.size() == 2 && parts[0].type() == "Digits") return "smollm";
  if (parts.size() != 2 || parts[0].type() != "Split" || !parts[0]["pattern"]["Regex"].has_value())
    return std::nullopt;
  const std::string regex = parts[0]["pattern"]["Regex"].string();
  for (const Splitting& known : kSplittings) {
    if (regex == known.regex) return known.name;
  }
  return std::nullopt;
}

size_t place_of(const JsonNode& id, size_t vocab) {
  const auto place = static_cast<size_t>(id.id());
  if (place >= vocab) throw id.corrupt(str("is ", place, ", the embedding has ", vocab, " rows"));
  return place;
}

std::string merge_text(const JsonNode& merge) {
  if (merge.json().is_string()) return merge.string();
  const std::vector<JsonNode> halves = merge.items();
  if (halves.size() != 2) throw merge.corrupt("is no pair");
  return halves[0].string() + " " + halves[1].string();
}

void add_vocabulary(const JsonNode& root, int64_t vocab, Metadata& metadata) {
  std::vector<std::string> tokens(static_cast<size_t>(vocab)), merges;
  std::vector<int32_t> types(tokens.size(), kUnused);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = str("[PAD", i, "]");
  const JsonNode model = root["model"], vocabulary = model["vocab"];
  for (const auto& [text, id] : vocabulary.require_object().json().items()) {
    const size_t place = place_of({&id, root.file(), "model.vocab"}, tokens.size());
    tokens[place] = text;
    types[place] = kNormal;
  }
  if (root["added_tokens"].has_value()) {
    for (const JsonNode& added : root["added_tokens"].items()) {
      const size_t place = place_of(added["id"], tokens.size());
      tokens[place] = added["content"].string();
      types[place] = added["special"].boolean_or(false) ? kControl : kUserDefined;
    }
  }
  for (const JsonNode& merge : model["merges"].items()) merges.push_back(merge_text(merge));
  metadata.set("tokenizer.ggml.tokens", Array(std::move(tokens)));
  metadata.set("tokenizer.ggml.token_type", Array(std::move(types)));
  metadata.set("tokenizer.ggml.merges", Array(std::move(merges)));
}

// config.json has one id, or a list of which the first counts.
std::optional<uint32_t> special_id(const nlohmann::ordered_json& config, const char* key) {
  if (!config.contains(key)) return std::nullopt;
  const auto& value = config.at(key);
  const auto& id = value.is_array() && !value.empty() ? value.at(0) : value;
  if (!id.is_number_unsigned() || id.get<uint64_t>() > tokenizer::kMaxId) return std::nullopt;
  return id.get<uint32_t>();
}

// The template as it stands in the folder; empty where there is none.
std::string chat_template(const fs::path& folder) {
  if (fs::exists(folder / "chat_template.jinja")) return read_text(folder / "chat_template.jinja");
  const fs::path path = folder / "tokenizer_config.json";
  if (!fs::exists(path)) return {};
  const auto config = parse_json(read_text(path), path.string());
  return config.is_object() && config.contains("chat_template") && config.at("chat_template").is_string()
             ? config.at("chat_template").get<std::string>()
             : std::string();
}

}  // namespace

bool add_tokenizer(const fs::path& folder, const nlohmann::ordered_json& config, int64_t vocab,
                   Metadata& metadata, Log& log) {
  const fs::path path = folder / "tokenizer.json";
  if (!fs::exists(path)) {
    log.warn("no tokenizer.json in " + folder.string() + ": the file gets no tokenizer");
    return false;
  }
  const tokenizer::Json json = tokenizer::parse(read_text(path), path.string());
  const JsonNode root(&json, path.string(), "");
  const auto rule = splitting(root["pre_tokenizer"]);
  if (root["model"].type() != "BPE" || !rule) {
    log.warn(path.string() +
             " is no byte-level BPE with a splitting rule that GGUF names: the file gets no tokenizer");
    return false;
  }
  metadata.set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.set("tokenizer.ggml.pre", *rule);
  add_vocabulary(root, vocab, metadata);
  const auto bos = special_id(config, "bos_token_id"), eos = special_id(config, "eos_token_id"),
             pad = special_id(config, "pad_token_id");
  if (bos) metadata.set("tokenizer.ggml.bos_token_id", *bos);
  if (eos) metadata.set("tokenizer.ggml.eos_token_id", *eos);
  if (pad) metadata.set("tokenizer.ggml.padding_token_id", *pad);
  const auto front = Tokenizer(path).encode("", {.add_special_tokens = true});
  metadata.set("tokenizer.ggml.add_bos_token",
               bos.has_value() && !front.empty() && front[0] == int64_t{*bos});
  if (std::string text = chat_template(folder); !text.empty())
    metadata.set("tokenizer.chat_template", std::move(text));
  return true;
}

}  // namespace gramian::gguf
