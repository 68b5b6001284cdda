#include "formats/tokenizer/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/normalizer.h"
#include "formats/tokenizer/unicode.h"

namespace gramian::tokenizer {
namespace {

constexpr int kMaxDepth = 8;
constexpr int64_t kStripMax = 1'000'000;

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte of an entry like <0x0A>.
std::optional<char> fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  const int high = hex_value(token[3]), low = hex_value(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high << 4 | low);
}

size_t size_of(const std::vector<std::string>& tokens) {
  size_t size = 0;
  for (const std::string& token : tokens) size += token.size();
  return size;
}

std::string join(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

}  // namespace

Decoder::Decoder(const JsonNode& node) {
  if (!node.has_value()) throw node.unsupported("a tokenizer without a decoder");
  add(node, 0);
}

void Decoder::add(const JsonNode& node, int depth) {
  const std::string& type = node.type();
  if (type == "ByteLevel") {
    steps_.emplace_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.emplace_back(Fuse{});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{read_pattern(node["pattern"]), node["content"].string()});
  } else if (type == "Strip") {
    Strip strip{node["content"].string(), node["start"].count(kStripMax), node["stop"].count(kStripMax)};
    node["content"].require_character();
    steps_.emplace_back(std::move(strip));
  } else if (type == "Sequence") {
    if (depth == kMaxDepth) throw node.unsupported(str("a sequence nested deeper than ", kMaxDepth));
    for (const JsonNode& part : node["decoders"].items()) add(part, depth + 1);
  } else {
    throw node.unsupported(str("decoder type \"", type, "\""));
  }
}

bool Decoder::only_byte_level() const noexcept {
  return steps_.size() == 1 && std::holds_alternative<ByteLevel>(steps_.front());
}

std::string Decoder::operator()(std::vector<std::string> tokens) const {
  const size_t most = replaced_max(size_of(tokens));
  for (const Step& step : steps_) {
    std::visit([&](const auto& operation) { apply(operation, tokens, most); }, step);
  }
  return join(tokens);
}

bool Decoder::settles(const std::string& token) const {
  if ((*this)({kAnchor}) != kAnchor) return false;
  std::vector<std::string> tokens{token};
  const size_t most = replaced_max(token.size());
  bool fused = false;
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) return false;
    if (fused) {
      // Blanks at the start are gone when there is text; a pattern may match across what follows.
      const auto* strip = std::get_if<Strip>(&step);
      if (strip == nullptr || strip->stop > 0) return false;
      continue;
    }
    // A run of bytes goes on with the next token.
    if (std::holds_alternative<ByteFallback>(step) && fallback_byte(tokens[0])) return false;
    fused = std::holds_alternative<Fuse>(step);
    std::visit([&](const auto& operation) { apply(operation, tokens, most); }, step);
  }
  return true;
}

void Decoder::apply(const ByteLevel&, std::vector<std::string>& tokens, size_t) {
  for (std::string& token : tokens) token = byte_level_decode(token);
  tokens = {replace_invalid_utf8(join(tokens))};
}

void Decoder::apply(const ByteFallback&, std::vector<std::string>& tokens, size_t) {
  std::vector<std::string> out;
  std::string run;
  // A run that is not UTF-8 as a whole becomes one U+FFFD per byte.
  const auto flush = [&] {
    if (find_invalid_utf8(run) == std::string_view::npos) {
      if (!run.empty()) out.push_back(run);
    } else {
      for (size_t i = 0; i < run.size(); ++i) out.emplace_back("\xEF\xBF\xBD");
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    if (const std::optional<char> byte = fallback_byte(token)) {
      run.push_back(*byte);
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  tokens = std::move(out);
}

void Decoder::apply(const Fuse&, std::vector<std::string>& tokens, size_t) { tokens = {join(tokens)}; }

void Decoder::apply(const Replace& replace, std::vector<std::string>& tokens, size_t size_max) {
  for (std::string& token : tokens) {
    token = replace_all(replace.pattern, token, replace.content, size_max);
    size_max -= std::min(size_max, token.size());
  }
}

void Decoder::apply(const Strip& strip, std::vector<std::string>& tokens, size_t) {
  for (std::string& token : tokens) {
    std::string_view text = token;
    for (int64_t i = 0; i < strip.start && text.starts_with(strip.content); ++i) {
      text.remove_prefix(strip.content.size());
    }
    for (int64_t i = 0; i < strip.stop && text.ends_with(strip.content); ++i)
      text.remove_suffix(strip.content.size());
    token = std::string(text);
  }
}

}  // namespace gramian::tokenizer
