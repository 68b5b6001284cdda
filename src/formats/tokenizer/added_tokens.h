// The added tokens of tokenizer.json: texts that are cut out before the model sees the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/tokenizer/json_node.h"
#include "formats/tokenizer/normalizer.h"
#include "formats/tokenizer/regex.h"

namespace gramian::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  std::string surface;  // what it matches and decodes to: `content`, normalized where `normalized`
  bool special = false;
  bool normalized = false;   // matches the normalized text instead of the raw text
  bool lstrip = false;       // swallows white space on its left
  bool rstrip = false;       // and on its right
  bool single_word = false;  // only where neither neighbour is a word character
};

// A part of a text: one added token, or a stretch of ordinary text (`token` null).
struct Section {
  std::string_view text;
  const AddedToken* token = nullptr;
};

// Finds the longest of many texts that begins at a position.
class PrefixTree {
 public:
  void insert(std::string_view text, uint32_t value);
  struct Hit {
    size_t length = 0;  // 0: nothing
    uint32_t value = 0;
  };
  Hit longest(std::string_view text) const noexcept;

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // (node << 8 | byte) -> node; the root is node 0. Few positions of a text pass the root.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<uint32_t> values_{kNone};
  bool first_[256] = {};
};

class AddedTokens {
 public:
  // `node` may be absent. Throws corrupt_data for a repeated id or content.
  AddedTokens(const JsonNode& node, const Normalizer& normalizer);
  const std::vector<AddedToken>& tokens() const noexcept { return tokens_; }
  // Null when `id` is no added token.
  const AddedToken* find(int64_t id) const noexcept;

  // Cuts the tokens that match the raw text (`normalized` false) or the normalized text out of `text`: the
  // leftmost match wins, at one place the longest. With `parse_special` false special tokens stay part of the
  // ordinary text.
  std::vector<Section> split(std::string_view text, bool normalized, bool parse_special) const;

 private:
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<int64_t, size_t> by_id_;
  PrefixTree raw_;
  PrefixTree normalized_;
  std::optional<Regex> word_;  // where a token has single_word
};

}  // namespace gramian::tokenizer
