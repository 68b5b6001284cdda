// The normalizer of tokenizer.json: null, NFC, NFD, NFKC, NFKD, Prepend, Replace, and Sequences of them.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/tokenizer/json_node.h"
#include "formats/tokenizer/regex.h"

namespace gramian::tokenizer {

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

// `text` is well-formed UTF-8. Linear in its length (up to the sorting of one run of combining marks).
std::string normalize_unicode(std::string_view text, UnicodeForm form);
// True when `text` surely is in the form already (a cheap test that may say no for such text).
bool is_surely_normalized(std::string_view text, UnicodeForm form) noexcept;

class Normalizer {
 public:
  // `node` may be absent. Throws unsupported for a type that is not built.
  explicit Normalizer(const JsonNode& node);
  bool empty() const noexcept { return steps_.empty(); }
  std::string operator()(std::string_view text) const;

 private:
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  using Step = std::variant<UnicodeForm, Prepend, Replace>;

  void add(const JsonNode& node, int depth);
  static std::string apply(const Prepend& prepend, std::string_view text);
  static std::string apply(const Replace& replace, std::string_view text, size_t size_max);

  std::vector<Step> steps_;
};

// A "pattern" member: {"String": ...} or {"Regex": ...}.
Regex read_pattern(const JsonNode& node);
// What a text of so many bytes may become by replacements: a few steps that double it are a file's way to fill the memory.
inline size_t replaced_max(size_t bytes) noexcept { return (size_t{1} << 16) + 64 * bytes; }
// Every match of `pattern` in `text` replaced by `content`. Throws corrupt_data where that takes more than `size_max` bytes.
std::string replace_all(const Regex& pattern, std::string_view text, std::string_view content,
                        size_t size_max);

}  // namespace gramian::tokenizer
