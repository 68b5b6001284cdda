#include "formats/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "formats/tokenizer/added_tokens.h"
#include "formats/tokenizer/bpe.h"
#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/decoder.h"
#include "formats/tokenizer/json_node.h"
#include "formats/tokenizer/normalizer.h"
#include "formats/tokenizer/post_processor.h"
#include "formats/tokenizer/pre_tokenizer.h"
#include "formats/tokenizer/unicode.h"

namespace gramian {
namespace {

using namespace tokenizer;

struct Token {
  std::string text;  // as the decoder wants it: plain bytes where it is ByteLevel only, else as in the file
  bool special = false;
};

class TokenTable {
 public:
  // Throws corrupt_data when an added token and the vocabulary give one text two ids or one id two texts.
  TokenTable(const JsonNode& root, const Bpe& model, const AddedTokens& added, bool as_bytes) {
    const auto text_of = [&](const std::string& text) { return as_bytes ? byte_level_decode(text) : text; };
    tokens_.reserve(model.vocabulary().size() + added.tokens().size());
    for (const auto& [text, id] : model.vocabulary()) tokens_.emplace(id, Token{text_of(text), false});
    for (const AddedToken& token : added.tokens()) {
      const auto word = model.vocabulary().find(token.content);
      const bool in_vocabulary = word != model.vocabulary().end();
      if (in_vocabulary && word->second != token.id) {
        throw root["added_tokens"].corrupt(
            str("\"", token.content, "\" has id ", token.id, ", but id ", word->second, " in model.vocab"));
      }
      const bool added_id =
          tokens_.insert_or_assign(token.id, Token{text_of(token.surface), token.special}).second;
      if (!in_vocabulary && !added_id) {
        throw root["added_tokens"].corrupt(
            str("id ", token.id, " of \"", token.content, "\" is another word's in model.vocab"));
      }
    }
    for (const auto& [id, token] : tokens_) size_ = std::max<int64_t>(size_, int64_t{id} + 1);
  }

  // Null when no token has this id.
  const Token* find(int64_t id) const {
    if (id < 0 || id >= size_) return nullptr;
    const auto found = tokens_.find(static_cast<int32_t>(id));
    return found == tokens_.end() ? nullptr : &found->second;
  }
  int64_t size() const noexcept { return size_; }

 private:
  std::unordered_map<int32_t, Token> tokens_;  // ids may have holes of any size
  int64_t size_ = 0;
};

JsonNode checked_root(const Json& json, const std::string& file) {
  const JsonNode root(&json, file, "");
  root.require_object();
  const JsonNode version = root["version"];
  if (version.has_value() && version.string() != "1.0") {
    throw version.unsupported(str("version \"", version.string(), "\""));
  }
  return root;
}

}  // namespace

// The file's truncation and padding members are settings of one use, not of the tokenizer, and are not
// applied.
struct Tokenizer::State {
  explicit State(const JsonNode& root)
      : file(root.file()),
        normalizer(root["normalizer"]),
        pre_tokenizer(root["pre_tokenizer"]),
        decoder(root["decoder"]),
        post_processor(root["post_processor"]),
        model(root["model"], pre_tokenizer.byte_level()),
        added(root["added_tokens"], normalizer),
        tokens(root, model, added, decoder.only_byte_level()) {
    for (const int64_t id : post_processor.added_ids()) {
      if (tokens.find(id) == nullptr) {
        throw root["post_processor"].corrupt(str("adds id ", id, ", which no token has"));
      }
    }
  }

  std::vector<int64_t> encode(std::string_view text, bool parse_special) const;
  // Throws invalid_argument; `position` is for the message.
  const Token& token(int64_t id, size_t position) const {
    if (const Token* found = tokens.find(id)) return *found;
    throw Error(
        ErrorKind::invalid_argument, file,
        str("no token has id ", id, " (at position ", position, "; ids go up to ", tokens.size() - 1, ")"));
  }

  std::string file;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Decoder decoder;
  PostProcessor post_processor;
  Bpe model;
  AddedTokens added;
  TokenTable tokens;
};

std::vector<int64_t> Tokenizer::State::encode(std::string_view text, bool parse_special) const {
  std::vector<int64_t> ids;
  TextArena arena;
  BpeScratch scratch;
  std::vector<Piece> pieces;
  for (const Section& raw : added.split(text, /*normalized=*/false, parse_special)) {
    if (raw.token != nullptr) {
      ids.push_back(raw.token->id);
      continue;
    }
    const std::string_view stretch = normalizer.empty() ? raw.text : arena.keep(normalizer(raw.text));
    for (const Section& section : added.split(stretch, /*normalized=*/true, parse_special)) {
      if (section.token != nullptr) {
        ids.push_back(section.token->id);
        continue;
      }
      const bool at_start = raw.text.data() == text.data() && section.text.data() == stretch.data();
      pieces.clear();
      pre_tokenizer(section.text, at_start, arena, pieces);
      for (const Piece& piece : pieces) model.encode(piece.text, scratch, ids);
    }
  }
  return ids;
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(const std::filesystem::path& tokenizer_json)
    : Tokenizer(parse(read_text(tokenizer_json), tokenizer_json.string())) {}

Tokenizer Tokenizer::parse(const std::string& tokenizer_json, const std::string& where) {
  const Json json = tokenizer::parse(tokenizer_json, where);
  return Tokenizer(std::make_unique<State>(checked_root(json, where)));
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::vector<int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    throw Error(ErrorKind::invalid_argument, "", str("the text is not UTF-8 at byte ", bad),
                "convert it to UTF-8 first");
  }
  std::vector<int64_t> ids = state_->encode(text, options.parse_special);
  return options.add_special_tokens ? state_->post_processor(std::move(ids)) : ids;
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, bool skip_special) const {
  const bool as_bytes = state_->decoder.only_byte_level();
  std::string bytes;
  std::vector<std::string> texts;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Token& token = state_->token(ids[i], i);
    if (skip_special && token.special) continue;
    if (as_bytes) {
      bytes += token.text;
    } else {
      texts.push_back(token.text);
    }
  }
  return as_bytes ? replace_invalid_utf8(bytes) : state_->decoder(std::move(texts));
}

bool Tokenizer::contains(int64_t id) const noexcept { return state_->tokens.find(id) != nullptr; }

int64_t Tokenizer::vocab_size() const noexcept { return state_->tokens.size(); }

std::string TextStream::push(int64_t id) {
  const Token& token = tokenizer_.state_->token(id, pushed_++);
  if (skip_special_ && token.special) return "";
  if (!tokenizer_.state_->decoder.only_byte_level()) {
    pending_.push_back(token.text);
    return tokenizer_.state_->decoder.settles(token.text) ? take_pending() : "";
  }
  bytes_ += token.text;
  const size_t held = unfinished_utf8(bytes_);
  const std::string text = replace_invalid_utf8(std::string_view(bytes_).substr(0, bytes_.size() - held));
  bytes_.erase(0, bytes_.size() - held);
  return text;
}

std::string TextStream::finish() {
  const std::string text = replace_invalid_utf8(bytes_) + take_pending();
  bytes_.clear();
  return text;
}

std::string TextStream::take_pending() {
  std::string text = tokenizer_.state_->decoder(pending_);
  if (begun_) text.erase(0, sizeof Decoder::kAnchor - 1);
  if (text.empty()) return text;
  begun_ = true;
  pending_ = {Decoder::kAnchor};
  return text;
}

}  // namespace gramian
