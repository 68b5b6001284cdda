#include "formats/tokenizer/pre_tokenizer.h"

#include <utility>

#include "formats/tokenizer/normalizer.h"
#include "formats/tokenizer/unicode_additions.h"

namespace gramian::tokenizer {
namespace {

constexpr int kMaxDepth = 8;

// ByteLevel's own rule (GPT-2, encoder.py).
constexpr const char* kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string& name = node.string();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  throw node.corrupt(str("\"", name, "\" is no split behavior"));
}

struct Span {
  ByteRange range;
  bool match = false;
};

// The whole text as matches and the gaps between them, in order.
std::vector<Span> cover(std::string_view text, const Regex& pattern, bool invert) {
  std::vector<ByteRange> matches;
  pattern.find_all(text, matches);
  std::vector<Span> spans;
  spans.reserve(matches.size() + 1);
  size_t from = 0;
  for (const ByteRange& match : matches) {
    if (match.begin > from) spans.push_back({{from, match.begin}, invert});
    spans.push_back({match, !invert});
    from = match.end;
  }
  if (from < text.size()) spans.push_back({{from, text.size()}, invert});
  return spans;
}

// A match joins the piece before it unless that ended in a match too.
std::vector<Span> merge_with_previous(const std::vector<Span>& spans) {
  std::vector<Span> merged;
  bool after_match = false;
  for (const Span& span : spans) {
    if (span.match && !after_match && !merged.empty()) {
      merged.back().range.end = span.range.end;
    } else {
      merged.push_back(span);
    }
    after_match = span.match;
  }
  return merged;
}

std::vector<Span> merge_with_next(const std::vector<Span>& spans) {
  std::vector<Span> merged;  // from right to left
  bool before_match = false;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    if (span->match && !before_match && !merged.empty()) {
      merged.back().range.begin = span->range.begin;
    } else {
      merged.push_back(*span);
    }
    before_match = span->match;
  }
  return {merged.rbegin(), merged.rend()};
}

std::vector<Span> merge_contiguous(const std::vector<Span>& spans) {
  std::vector<Span> merged;
  for (const Span& span : spans) {
    if (!merged.empty() && merged.back().match == span.match) {
      merged.back().range.end = span.range.end;
    } else {
      merged.push_back(span);
    }
  }
  return merged;
}

std::vector<Span> arrange(std::vector<Span> spans, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::removed:
      std::erase_if(spans, [](const Span& span) { return span.match; });
      return spans;
    case SplitBehavior::isolated:
      return spans;
    case SplitBehavior::merged_with_previous:
      return merge_with_previous(spans);
    case SplitBehavior::merged_with_next:
      return merge_with_next(spans);
    case SplitBehavior::contiguous:
      break;
  }
  return merge_contiguous(spans);
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonNode& node) {
  if (node.has_value()) add(node, 0);
}

void PreTokenizer::add(const JsonNode& node, int depth) {
  const std::string& type = node.type();
  if (byte_level_) throw node.unsupported(str("a step (\"", type, "\") behind ByteLevel"));
  if (type == "Split") {
    steps_.emplace_back(Split{read_pattern(node["pattern"]), read_behavior(node["behavior"]),
                              node["invert"].boolean_or(false)});
  } else if (type == "Digits") {
    const bool individual = node["individual_digits"].boolean_or(false);
    steps_.emplace_back(
        Split{Regex(str("[\\p{N}", unicode_additions("N"), "]"), node.file() + ": " + node.path()),
              individual ? SplitBehavior::isolated : SplitBehavior::contiguous, false});
  } else if (type == "ByteLevel") {
    add_byte_level(node);
  } else if (type == "Metaspace") {
    steps_.emplace_back(read_metaspace(node));
  } else if (type == "Sequence") {
    if (depth == kMaxDepth) throw node.unsupported(str("a sequence nested deeper than ", kMaxDepth));
    for (const JsonNode& part : node["pretokenizers"].items()) add(part, depth + 1);
  } else {
    throw node.unsupported(str("pre_tokenizer type \"", type, "\""));
  }
}

void PreTokenizer::add_byte_level(const JsonNode& node) {
  if (node["add_prefix_space"].boolean_or(true)) steps_.emplace_back(PrefixSpace{});
  if (node["use_regex"].boolean_or(true)) {
    const Json pattern = kGpt2Pattern;
    steps_.emplace_back(
        Split{Regex(JsonNode(&pattern, node.file(), node.path())), SplitBehavior::isolated, false});
  }
  byte_level_ = true;
}

PreTokenizer::Metaspace PreTokenizer::read_metaspace(const JsonNode& node) {
  Metaspace metaspace{node["replacement"].string(), PrependScheme::always, {}};
  node["replacement"].require_character();
  const JsonNode scheme = node["prepend_scheme"];
  if (scheme.has_value()) {
    const std::string& name = scheme.string();
    if (name == "always") {
      metaspace.scheme = PrependScheme::always;
    } else if (name == "first") {
      metaspace.scheme = PrependScheme::first;
    } else if (name == "never") {
      metaspace.scheme = PrependScheme::never;
    } else {
      throw scheme.corrupt(str("\"", name, "\" is no prepend scheme"));
    }
  } else if (!node["add_prefix_space"].boolean_or(true)) {
    metaspace.scheme = PrependScheme::never;  // files older than prepend_scheme
  }
  if (node["split"].boolean_or(true)) {
    metaspace.split.push_back(Split{Regex::literal(metaspace.replacement, node.file() + ": " + node.path()),
                                    SplitBehavior::merged_with_next, false});
  }
  return metaspace;
}

void PreTokenizer::operator()(std::string_view text, bool at_start, TextArena& arena,
                              std::vector<Piece>& pieces) const {
  if (text.empty()) return;
  std::vector<Piece> current{{text, at_start}};
  std::vector<Piece> next;
  for (const Step& step : steps_) {
    next.clear();
    for (const Piece& piece : current) {
      std::visit([&](const auto& operation) { apply(operation, piece, arena, next); }, step);
    }
    current.swap(next);
  }
  pieces.insert(pieces.end(), current.begin(), current.end());
}

void PreTokenizer::apply(const Split& split, const Piece& piece, TextArena&, std::vector<Piece>& out) {
  for (const Span& span : arrange(cover(piece.text, split.pattern, split.invert), split.behavior)) {
    const ByteRange range = span.range;
    if (range.begin == range.end) continue;
    out.push_back(
        {piece.text.substr(range.begin, range.end - range.begin), piece.at_start && range.begin == 0});
  }
}

void PreTokenizer::apply(const PrefixSpace&, const Piece& piece, TextArena& arena, std::vector<Piece>& out) {
  if (piece.text.front() == ' ') return out.push_back(piece);
  out.push_back({arena.keep(" " + std::string(piece.text)), piece.at_start});
}

void PreTokenizer::apply(const Metaspace& metaspace, const Piece& piece, TextArena& arena,
                         std::vector<Piece>& out) {
  std::string text;
  text.reserve(piece.text.size() + metaspace.replacement.size());
  const bool prepend = metaspace.scheme == PrependScheme::always ||
                       (metaspace.scheme == PrependScheme::first && piece.at_start);
  if (prepend && piece.text.front() != ' ' && !piece.text.starts_with(metaspace.replacement)) {
    text = metaspace.replacement;
  }
  for (const char c : piece.text) {
    if (c == ' ') {
      text += metaspace.replacement;
    } else {
      text.push_back(c);
    }
  }
  const Piece replaced{arena.keep(std::move(text)), piece.at_start};
  if (metaspace.split.empty()) return out.push_back(replaced);
  apply(metaspace.split.front(), replaced, arena, out);
}

}  // namespace gramian::tokenizer
