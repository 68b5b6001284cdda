// tokenizer.json from GGUF's vocabulary: tokenizer_json() of model_reader.h.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/format.h"
#include "formats/gguf/model_reader.h"
#include "formats/gguf/token_types.h"
#include "formats/json.h"

namespace gramian::gguf {
namespace {

using Json = nlohmann::ordered_json;

// "▁", a blank of SentencePiece.
constexpr const char* kBlank = "\xE2\x96\x81";

class Builder {
 public:
  Builder(const Metadata& metadata, std::string where) : metadata_(metadata), where_(std::move(where)) {
    tokens_ = metadata.array<std::string>("tokenizer.ggml.tokens");
    if (tokens_ == nullptr || tokens_->empty()) fail("tokenizer.ggml.tokens", "is missing");
    types_ = metadata.array<int32_t>("tokenizer.ggml.token_type");
    if (types_ != nullptr && types_->size() != tokens_->size())
      fail("tokenizer.ggml.token_type",
           str("has ", types_->size(), " entries for ", tokens_->size(), " tokens"));
  }

  // Byte-level BPE; nothing for a splitting rule that is not known.
  std::optional<Json> byte_level() {
    const std::string* rule = metadata_.string("tokenizer.ggml.pre");
    const auto split = split_of(rule == nullptr ? "default" : *rule);
    const auto* merges = metadata_.array<std::string>("tokenizer.ggml.merges");
    if (!split) return std::nullopt;
    if (merges == nullptr) fail("tokenizer.ggml.merges", "is missing");
    Json root = frame();
    root["pre_tokenizer"] = *split;
    root["decoder"] = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
    Json& model = root["model"];
    model = {{"type", "BPE"},
             {"byte_fallback", false},
             {"ignore_merges", rule != nullptr && *rule == "llama-bpe"}};
    model["vocab"] = vocabulary();
    model["merges"] = Json::array();
    for (const std::string& merge : *merges) {
      const size_t blank = merge.find(' ');
      if (blank == std::string::npos)
        fail("tokenizer.ggml.merges", str("holds ", quote_name(merge), ", no pair"));
      model["merges"].push_back(Json::array({merge.substr(0, blank), merge.substr(blank + 1)}));
    }
    return root;
  }

  // SentencePiece's BPE: pieces merge by their scores, what is no piece becomes bytes.
  Json sentence_piece() {
    Json root = frame();
    const bool prefix = metadata_.boolean("tokenizer.ggml.add_space_prefix").value_or(true);
    Json steps = Json::array();
    if (prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kBlank}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kBlank}});
    root["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    Json back = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kBlank}}}, {"content", " "}},
                             {{"type", "ByteFallback"}},
                             {{"type", "Fuse"}}});
    if (prefix) back.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    root["decoder"] = {{"type", "Sequence"}, {"decoders", back}};
    Json& model = root["model"];
    model = {{"type", "BPE"}, {"byte_fallback", true}, {"fuse_unk", true}, {"ignore_merges", false}};
    const auto unknown = metadata_.integer("tokenizer.ggml.unknown_token_id");
    if (unknown && in_range(*unknown)) model["unk_token"] = (*tokens_)[static_cast<size_t>(*unknown)];
    model["vocab"] = vocabulary();
    model["merges"] = merges_by_score();
    return root;
  }

 private:
  [[noreturn]] void fail(const char* key, const std::string& what) const {
    throw Error(ErrorKind::corrupt_data, where_, str("the key ", quote_name(key), " ", what),
                "convert the model again");
  }
  bool in_range(int64_t id) const { return id >= 0 && static_cast<size_t>(id) < tokens_->size(); }
  int32_t type(size_t id) const { return types_ == nullptr ? kNormal : (*types_)[id]; }

  // What all kinds have: tokens that are cut out first, and those that are put around a text.
  Json frame() const {
    Json root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
    root["added_tokens"] = Json::array();
    for (size_t id = 0; id < tokens_->size(); ++id) {
      const bool special = type(id) == kControl || type(id) == kUnknown;
      if (!special && type(id) != kUserDefined) continue;
      if ((*tokens_)[id].empty()) continue;
      root["added_tokens"].push_back({{"id", id},
                                      {"content", (*tokens_)[id]},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", special}});
    }
    root["normalizer"] = nullptr;
    root["pre_tokenizer"] = nullptr;
    root["post_processor"] = post_processor();
    return root;
  }

  Json post_processor() const {
    Json single = Json::array(), special = Json::object();
    const auto put = [&](const char* wanted, const char* key, bool otherwise) {
      const auto id = metadata_.integer(key);
      if (!metadata_.boolean(wanted).value_or(otherwise) || !id || !in_range(*id)) return;
      const std::string& token = (*tokens_)[static_cast<size_t>(*id)];
      single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
      special[token] = {{"id", token}, {"ids", {*id}}, {"tokens", {token}}};
    };
    const std::string* model = metadata_.string("tokenizer.ggml.model");
    put("tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", model != nullptr && *model == "llama");
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    put("tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id", false);
    if (special.empty()) return nullptr;
    return {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", Json::array()},
            {"special_tokens", special}};
  }

  // Without the rows that no text becomes. Two ids of one text: the first.
  Json vocabulary() const {
    std::map<std::string, size_t> ids;
    for (size_t id = 0; id < tokens_->size(); ++id) {
      if (type(id) != kUnused || types_ == nullptr) ids.emplace((*tokens_)[id], id);
    }
    Json vocabulary = Json::object();
    for (const auto& [token, id] : ids) vocabulary[token] = id;
    return vocabulary;
  }

  // Every way to make a piece of two others, in the order of the pieces' scores.
  Json merges_by_score() const {
    const auto* scores = metadata_.array<float>("tokenizer.ggml.scores");
    if (scores == nullptr || scores->size() != tokens_->size())
      fail("tokenizer.ggml.scores", "does not have one score a token");
    std::unordered_map<std::string_view, size_t> ids;
    for (size_t id = 0; id < tokens_->size(); ++id) {
      if (type(id) == kNormal || type(id) == kUserDefined) ids.emplace((*tokens_)[id], id);
    }
    struct Merge {
      float score;
      size_t piece, left, right;
    };
    std::vector<Merge> merges;
    for (const auto& [text, id] : ids) {
      for (size_t at = 1; at < text.size(); ++at) {
        const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
        if (left != ids.end() && right != ids.end())
          merges.push_back({(*scores)[id], id, left->second, right->second});
      }
    }
    std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
      return std::tuple(-a.score, a.piece, a.left, a.right) < std::tuple(-b.score, b.piece, b.left, b.right);
    });
    Json list = Json::array();
    for (const Merge& merge : merges)
      list.push_back(Json::array({(*tokens_)[merge.left], (*tokens_)[merge.right]}));
    return list;
  }

  static std::optional<Json> split_of(const std::string& rule) {
    const Json bytes = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    Json own = bytes;
    own["use_regex"] = true;
    if (rule == "gpt-2" || rule == "default") return own;
    const auto sequence = [](const Json& first, const Json& second) {
      return Json{{"type", "Sequence"}, {"pretokenizers", Json::array({first, second})}};
    };
    if (rule == "smollm") return sequence({{"type", "Digits"}, {"individual_digits", true}}, own);
    for (const Splitting& known : splittings()) {
      if (rule == known.name)
        return sequence({{"type", "Split"},
                         {"pattern", {{"Regex", known.regex}}},
                         {"behavior", "Isolated"},
                         {"invert", false}},
                        bytes);
    }
    return std::nullopt;
  }

  const Metadata& metadata_;
  std::string where_;
  const std::vector<std::string>* tokens_ = nullptr;
  const std::vector<int32_t>* types_ = nullptr;
};

}  // namespace

std::optional<std::string> tokenizer_json(const Metadata& metadata, const std::string& where) {
  const std::string* model = metadata.string("tokenizer.ggml.model");
  if (model == nullptr || metadata.find("tokenizer.ggml.tokens") == nullptr) return std::nullopt;
  std::optional<Json> json;
  if (*model == "gpt2") json = Builder(metadata, where).byte_level();
  if (*model == "llama") json = Builder(metadata, where).sentence_piece();
  if (!json) return std::nullopt;
  return json->dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace gramian::gguf
