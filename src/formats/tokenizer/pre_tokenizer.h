// The pre_tokenizer of tokenizer.json: cuts a stretch of text into the pieces inside which BPE merges.
// Built: Split, Digits, ByteLevel, Metaspace, null, and Sequences of them.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/tokenizer/json_node.h"
#include "formats/tokenizer/regex.h"

namespace gramian::tokenizer {

// Keeps texts in place that views point to.
class TextArena {
 public:
  std::string_view keep(std::string text) { return texts_.emplace_back(std::move(text)); }

 private:
  std::deque<std::string> texts_;
};

struct Piece {
  std::string_view text;  // not empty
  bool at_start = false;  // begins where the whole input begins
};

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

class PreTokenizer {
 public:
  // `node` may be absent: a stretch is one piece then. Throws unsupported for a type that is not built.
  explicit PreTokenizer(const JsonNode& node);
  // True when the last step is ByteLevel: the model's symbols are bytes then, else characters. Pieces always
  // hold plain UTF-8; the byte table is applied to the vocabulary instead.
  bool byte_level() const noexcept { return byte_level_; }
  // Appends the pieces of `text` to `pieces`; they view `text` or texts in `arena`.
  void operator()(std::string_view text, bool at_start, TextArena& arena, std::vector<Piece>& pieces) const;

 private:
  struct Split {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;
  };
  // ByteLevel's add_prefix_space.
  struct PrefixSpace {};
  enum class PrependScheme { always, first, never };
  struct Metaspace {
    std::string replacement;
    PrependScheme scheme;
    std::vector<Split> split;  // one or none
  };
  using Step = std::variant<Split, PrefixSpace, Metaspace>;

  void add(const JsonNode& node, int depth);
  void add_byte_level(const JsonNode& node);
  static Metaspace read_metaspace(const JsonNode& node);
  static void apply(const Split& split, const Piece& piece, TextArena& arena, std::vector<Piece>& out);
  static void apply(const PrefixSpace& prefix, const Piece& piece, TextArena& arena, std::vector<Piece>& out);
  static void apply(const Metaspace& metaspace, const Piece& piece, TextArena& arena,
                    std::vector<Piece>& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace gramian::tokenizer
