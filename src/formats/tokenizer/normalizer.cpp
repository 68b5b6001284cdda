#include "formats/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "formats/tokenizer/unicode.h"

namespace gramian::tokenizer {
namespace {

// Sequences inside sequences; real files use one level.
constexpr int kMaxDepth = 8;

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

utf8proc_option_t options_of(UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::nfc || form == UnicodeForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::nfkc || form == UnicodeForm::nfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

}  // namespace

bool is_surely_normalized(std::string_view text, UnicodeForm form) noexcept {
  // Below U+0300 (lead byte 0xCC) every character is its own NFC and composes with nothing in front of it.
  const unsigned char limit = form == UnicodeForm::nfc ? 0xCC : 0x80;
  return std::all_of(text.begin(), text.end(), [limit](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < limit;
  });
}

std::string normalize_unicode(std::string_view text, UnicodeForm form) {
  if (is_surely_normalized(text, form)) return std::string(text);
  const utf8proc_option_t options = options_of(form);
  // utf8proc's own whole-string decomposition orders marks by exchanging neighbours, which is quadratic for a
  // long run of them; only its tables and its composition are used.
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  int last_bound_class = 0;
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t parts[64];
    const auto c = static_cast<utf8proc_int32_t>(next_code_point(text, at));
    const utf8proc_ssize_t count = utf8proc_decompose_char(c, parts, 64, options, &last_bound_class);
    GRAMIAN_CHECK(count >= 0 && count <= 64, "utf8proc: ", utf8proc_errmsg(count));
    points.insert(points.end(), parts, parts + count);
  }
  const auto starter = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
  for (auto run = points.begin(); run != points.end();) {
    run = std::find_if_not(run, points.end(), starter);
    const auto end = std::find_if(run, points.end(), starter);
    std::stable_sort(run, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  GRAMIAN_CHECK(length >= 0, "utf8proc: ", utf8proc_errmsg(length));
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i)
    append_utf8(out, static_cast<char32_t>(points[static_cast<size_t>(i)]));
  return out;
}

Regex read_pattern(const JsonNode& node) {
  node.require_object();
  const JsonNode literal = node["String"];
  const JsonNode regex = node["Regex"];
  if (literal.has_value() == regex.has_value()) throw node.corrupt("expected either \"String\" or \"Regex\"");
  if (regex.has_value()) return Regex(regex);
  return Regex::literal(literal.string(), node.file() + ": " + literal.path());
}

std::string replace_all(const Regex& pattern, std::string_view text, std::string_view content,
                        size_t size_max) {
  std::vector<ByteRange> matches;
  pattern.find_all(text, matches);
  std::string out;
  size_t from = 0;
  for (const ByteRange& match : matches) {
    out.append(text.substr(from, match.begin - from)).append(content);
    from = match.end;
    if (out.size() > size_max)
      throw Error(ErrorKind::corrupt_data, pattern.where(),
                  str("the replacements make more than ", size_max, " bytes of a text of ", text.size()),
                  "the tokenizer's replacement is too long for this text");
  }
  return out.append(text.substr(from));
}

Normalizer::Normalizer(const JsonNode& node) {
  if (node.has_value()) add(node, 0);
}

void Normalizer::add(const JsonNode& node, int depth) {
  const std::string& type = node.type();
  if (type == "NFC") {
    steps_.emplace_back(UnicodeForm::nfc);
  } else if (type == "NFD") {
    steps_.emplace_back(UnicodeForm::nfd);
  } else if (type == "NFKC") {
    steps_.emplace_back(UnicodeForm::nfkc);
  } else if (type == "NFKD") {
    steps_.emplace_back(UnicodeForm::nfkd);
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{node["prepend"].string()});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{read_pattern(node["pattern"]), node["content"].string()});
  } else if (type == "Sequence") {
    if (depth == kMaxDepth) throw node.unsupported(str("a sequence nested deeper than ", kMaxDepth));
    for (const JsonNode& part : node["normalizers"].items()) add(part, depth + 1);
  } else {
    throw node.unsupported(str("normalizer type \"", type, "\""));
  }
}

std::string Normalizer::operator()(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (const auto* replace = std::get_if<Replace>(&step)) {
      out = apply(*replace, out, replaced_max(text.size()));
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      out = apply(*prepend, out);
    } else {
      out = normalize_unicode(out, std::get<UnicodeForm>(step));
    }
  }
  return out;
}

std::string Normalizer::apply(const Prepend& prepend, std::string_view text) {
  return text.empty() ? std::string() : prepend.text + std::string(text);
}

std::string Normalizer::apply(const Replace& replace, std::string_view text, size_t size_max) {
  return replace_all(replace.pattern, text, replace.content, size_max);
}

}  // namespace gramian::tokenizer
