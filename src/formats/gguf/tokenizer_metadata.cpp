// The vocabulary of tokenizer.json in GGUF's keys.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "formats/gguf/convert.h"
#include "formats/gguf/token_types.h"
#include "formats/json.h"
#include "formats/model_files.h"
#include "formats/tokenizer.h"
#include "formats/tokenizer/json_node.h"

namespace gramian::gguf {
namespace {

namespace fs = std::filesystem;
using tokenizer::JsonNode;

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
  for (const Splitting& known : splittings()) {
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

// SentencePiece's BPE as tokenizer.json tells it: pieces with blanks as "▁", bytes for what is no piece, no splitting into words.
bool is_sentence_piece(const JsonNode& root) {
  if (root["model"].type() != "BPE" || !root["model"]["byte_fallback"].boolean_or(false)) return false;
  const JsonNode split = root["pre_tokenizer"];
  return !split.has_value() || split.type() == "Metaspace" || split.type() == "Split";
}

// Whether a blank is put before a text.
bool puts_blank_first(const JsonNode& root) {
  const JsonNode split = root["pre_tokenizer"], normalizer = root["normalizer"];
  if (split.has_value() && split.type() == "Metaspace")
    return !split["prepend_scheme"].has_value() || split["prepend_scheme"].string() != "never";
  if (!normalizer.has_value()) return false;
  std::vector<JsonNode> steps = {normalizer};
  if (normalizer.type() == "Sequence") steps = normalizer["normalizers"].items();
  return std::any_of(steps.begin(), steps.end(),
                     [](const JsonNode& step) { return step.type() == "Prepend"; });
}

// Pieces that merge earlier have higher scores: less the rank of the first merge that makes the piece. Others (characters, bytes) are
// made by no merge and come last.
std::vector<float> scores_of(const JsonNode& model, const std::vector<std::string>& tokens) {
  std::unordered_map<std::string, float> ranks;
  float rank = 0;
  for (const JsonNode& merge : model["merges"].items()) {
    std::string text = merge_text(merge);
    // The blank between the halves; pieces hold none.
    text.erase(text.find(' '), 1);
    ranks.emplace(std::move(text), -(++rank));
  }
  std::vector<float> scores;
  for (const std::string& token : tokens) {
    const auto found = ranks.find(token);
    scores.push_back(found == ranks.end() ? -(rank + 1) : found->second);
  }
  return scores;
}

void add_vocabulary(const JsonNode& root, int64_t vocab, Metadata& metadata) {
  std::vector<std::string> tokens(static_cast<size_t>(vocab)), merges;
  std::vector<int32_t> types(tokens.size(), kUnused);
  const bool pieces = is_sentence_piece(root);
  const JsonNode unknown = root["model"]["unk_token"];
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = str("[PAD", i, "]");
  const JsonNode model = root["model"], vocabulary = model["vocab"];
  for (const auto& [text, id] : vocabulary.require_object().json().items()) {
    const size_t place = place_of({&id, root.file(), "model.vocab"}, tokens.size());
    tokens[place] = text;
    types[place] = kNormal;
    if (pieces && text.size() == 6 && text.starts_with("<0x") && text.ends_with('>')) types[place] = kByte;
    if (pieces && unknown.has_value() && text == unknown.string()) types[place] = kUnknown;
  }
  if (root["added_tokens"].has_value()) {
    for (const JsonNode& added : root["added_tokens"].items()) {
      const size_t place = place_of(added["id"], tokens.size());
      tokens[place] = added["content"].string();
      if (types[place] == kUnknown) continue;
      types[place] = added["special"].boolean_or(false) ? kControl : kUserDefined;
    }
  }
  if (pieces) {
    metadata.set("tokenizer.ggml.scores", Array(scores_of(model, tokens)));
  } else {
    for (const JsonNode& merge : model["merges"].items()) merges.push_back(merge_text(merge));
  }
  metadata.set("tokenizer.ggml.tokens", Array(std::move(tokens)));
  metadata.set("tokenizer.ggml.token_type", Array(std::move(types)));
  if (!pieces) metadata.set("tokenizer.ggml.merges", Array(std::move(merges)));
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
  if (auto text = model_text(folder, "chat_template.jinja")) return std::move(*text);
  const auto settings = model_text(folder, "tokenizer_config.json");
  if (!settings) return {};
  const auto config = parse_json(*settings, model_text_place(folder, "tokenizer_config.json"));
  return config.is_object() && config.contains("chat_template") && config.at("chat_template").is_string()
             ? config.at("chat_template").get<std::string>()
             : std::string();
}

}  // namespace

std::span<const Splitting> splittings() { return kSplittings; }

bool add_tokenizer(const fs::path& folder, const nlohmann::ordered_json& config, int64_t vocab,
                   Metadata& metadata, Log& log) {
  const auto text = model_text(folder, "tokenizer.json");
  if (!text) {
    log.warn(
        (folder.empty() ? std::string("no tokenizer was given") : "no tokenizer.json in " + folder.string()) +
        ": the file gets no tokenizer");
    return false;
  }
  const std::string where = model_text_place(folder, "tokenizer.json");
  const tokenizer::Json json = tokenizer::parse(*text, where);
  const JsonNode root(&json, where, "");
  const bool pieces = is_sentence_piece(root);
  const auto rule = pieces ? std::optional<std::string>("default") : splitting(root["pre_tokenizer"]);
  if (root["model"].type() != "BPE" || !rule) {
    log.warn(where +
             " is neither SentencePiece's BPE nor a byte-level one with a splitting rule that GGUF names: "
             "the file gets "
             "no tokenizer");
    return false;
  }
  metadata.set("tokenizer.ggml.model", std::string(pieces ? "llama" : "gpt2"));
  metadata.set("tokenizer.ggml.pre", *rule);
  add_vocabulary(root, vocab, metadata);
  const auto bos = special_id(config, "bos_token_id"), eos = special_id(config, "eos_token_id"),
             pad = special_id(config, "pad_token_id");
  if (pieces) {
    metadata.set("tokenizer.ggml.add_space_prefix", puts_blank_first(root));
    const JsonNode unknown = root["model"]["unk_token"];
    const JsonNode id = unknown.has_value() ? root["model"]["vocab"][unknown.string()] : unknown;
    if (id.has_value()) metadata.set("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(id.id()));
  }
  if (bos) metadata.set("tokenizer.ggml.bos_token_id", *bos);
  if (eos) metadata.set("tokenizer.ggml.eos_token_id", *eos);
  if (pad) metadata.set("tokenizer.ggml.padding_token_id", *pad);
  const auto front = Tokenizer::parse(*text, where).encode("", {.add_special_tokens = true});
  metadata.set("tokenizer.ggml.add_bos_token",
               bos.has_value() && !front.empty() && front[0] == int64_t{*bos});
  if (std::string chat = chat_template(folder); !chat.empty())
    metadata.set("tokenizer.chat_template", std::move(chat));
  return true;
}

}  // namespace gramian::gguf
