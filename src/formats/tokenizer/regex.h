// Regular expressions of tokenizer.json, which are written for Oniguruma (Ruby syntax), matched by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/tokenizer/json_node.h"

namespace gramian::tokenizer {

// A half-open range of bytes.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

class Regex {
 public:
  // `node` holds the pattern and names the place in errors: corrupt_data with PCRE2's message and the offset
  // in the pattern for one that does not compile, unsupported for constructs that the two dialects read
  // differently.
  explicit Regex(const JsonNode& node);
  // A pattern of ours, already in PCRE2's dialect; `where` names it in errors.
  Regex(std::string_view pcre2_pattern, std::string where);
  // Matches `text` itself.
  static Regex literal(std::string_view text, std::string where);
  ~Regex();
  Regex(Regex&&) noexcept;

  // All matches from left to right, which do not overlap; an empty match directly behind a match is left out
  // (as in Oniguruma's Rust binding). `text` is well-formed UTF-8. Appends to `matches`. Thread-safe. Throws
  // corrupt_data when the matches run over their limit of steps, which grows with the text.
  void find_all(std::string_view text, std::vector<ByteRange>& matches) const;
  bool matches_somewhere(std::string_view text) const;
  // Its place, for errors.
  const std::string& where() const noexcept;

 private:
  struct State;
  explicit Regex(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// Rewrites Oniguruma's Ruby syntax for PCRE2 with PCRE2_UCP and PCRE2_MULTILINE: \s, \w, \h and [:brackets:]
// are spelled out by their Unicode properties (PCRE2's \s has U+180E, its \w has no marks), \p{Script} asks
// for the script itself instead of its extensions, general categories get the characters of Unicode 15 and
// 16, (?m) becomes (?s), \uHHHH and {,n} are spelled PCRE2's way. Throws like Regex(node).
struct TranslatedPattern {
  std::string text;
  std::vector<size_t> origin;  // for each byte of `text`, the offset in the source
};
TranslatedPattern translate_oniguruma(const JsonNode& node);

}  // namespace gramian::tokenizer
