// The decoder of tokenizer.json: from the texts of tokens back to one text.
// Built: ByteLevel; and Sequences of Replace, ByteFallback, Fuse, Strip (and ByteLevel).
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "formats/tokenizer/json_node.h"
#include "formats/tokenizer/regex.h"

namespace gramian::tokenizer {

class Decoder {
 public:
  // Throws unsupported for a type that is not built, and for a file without a decoder.
  explicit Decoder(const JsonNode& node);
  // True when the only step is ByteLevel: the text is the tokens' bytes one behind the other.
  bool only_byte_level() const noexcept;
  std::string operator()(std::vector<std::string> tokens) const;
  // Whether a list that ends with `token` and has any text settles it: the text of every longer list begins with it and goes on
  // as if kAnchor stood for the list.
  bool settles(const std::string& token) const;
  static constexpr char kAnchor[] = "a";

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Strip {
    std::string content;
    int64_t start = 0;
    int64_t stop = 0;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip>;

  void add(const JsonNode& node, int depth);
  // `size_max`: of all tokens together.
  static void apply(const ByteLevel& step, std::vector<std::string>& tokens, size_t size_max);
  static void apply(const ByteFallback& step, std::vector<std::string>& tokens, size_t size_max);
  static void apply(const Fuse& step, std::vector<std::string>& tokens, size_t size_max);
  static void apply(const Replace& step, std::vector<std::string>& tokens, size_t size_max);
  static void apply(const Strip& step, std::vector<std::string>& tokens, size_t size_max);

  std::vector<Step> steps_;
};

}  // namespace gramian::tokenizer
