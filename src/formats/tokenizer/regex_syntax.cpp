// Oniguruma's Ruby syntax (its document RE, version 6.9) rewritten for PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>

#include "formats/tokenizer/regex.h"
#include "formats/tokenizer/unicode_additions.h"

namespace gramian::tokenizer {
namespace {

// Members of character classes, without the brackets.
constexpr const char* kSpace =
    "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr const char* kNotSpace =
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";
// Oniguruma counts the superscript digits and fractions of Latin-1 among the word characters, but not in a
// class.
std::string word_members(bool in_class) {
  return str("\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}", in_class ? "" : "\\xb2\\xb3\\xb9\\xbc-\\xbe",
             unicode_additions("L"), unicode_additions("M"), unicode_additions("Nd"));
}
constexpr const char* kHexDigit = "0-9a-fA-F";

struct Bracket {
  const char* name;
  const char* members;
};
// Oniguruma's POSIX brackets in Unicode; PCRE2's differ in marks, symbols and U+180E.
constexpr Bracket kBrackets[] = {
    {"alpha", "\\p{Alphabetic}"},
    {"alnum", "\\p{Alphabetic}\\p{Nd}"},
    {"digit", "\\p{Nd}"},
    {"lower", "\\p{Lowercase}"},
    {"upper", "\\p{Uppercase}"},
    {"punct", "\\p{P}\\p{S}"},
    {"space", kSpace},
    {"xdigit", kHexDigit},
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// True when PCRE2 knows `name` as a script.
bool is_script(const std::string& name) {
  const std::string pattern = "\\p{sc:" + name + "}";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF,
                                   &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

class Translator {
 public:
  explicit Translator(const JsonNode& node) : node_(node), in_(node.string()) {}

  TranslatedPattern run() {
    while (at_ < in_.size()) {
      start_ = at_;
      const char c = in_[at_++];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_member(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        interval();
      } else {
        emit(std::string(1, c));
      }
    }
    return std::move(out_);
  }

 private:
  void emit(const std::string& text) {
    out_.text += text;
    out_.origin.insert(out_.origin.end(), text.size(), start_);
  }
  char peek() const { return at_ < in_.size() ? in_[at_] : '\0'; }
  Error not_built(const std::string& what) const {
    return node_.unsupported(str(what, " at offset ", start_, " of \"", in_, "\""));
  }

  // A set that stands alone outside a class, or among other members inside one.
  void emit_set(const std::string& members, bool negated = false) {
    if (in_class_ && negated) throw not_built("a negated set inside a character class");
    emit(in_class_ ? members : str(negated ? "[^" : "[", members, "]"));
  }

  void escape() {
    if (at_ == in_.size()) {
      emit("\\");  // PCRE2 reports it
      return;
    }
    const char c = in_[at_++];
    switch (c) {
      case 's':
        return emit_set(kSpace);
      case 'S':
        return emit_set(kNotSpace);
      case 'w':
        return emit_set(word_members(in_class_));
      case 'W':
        return emit_set(word_members(in_class_), true);
      case 'h':
        return emit_set(kHexDigit);
      case 'H':
        return emit_set(kHexDigit, true);
      case 'p':
      case 'P':
        return property(c);
      case 'u':
        return code_point();
      case 'b':
        if (in_class_) return emit("\\b");
        throw not_built("\\b");
      case 'B':
      case 'K':
      case 'N':
      case 'O':
      case 'Q':
      case 'E':
      case 'R':
      case 'X':
      case 'y':
      case 'Y':
      case 'M':
      case 'C':
      case 'c':
      case 'g':
      case 'k':
        throw not_built(str("\\", c));
      default:
        emit(str("\\", c));
    }
  }

  void property(char letter) {
    std::string name;
    if (peek() != '{') {  // \pL
      name = in_.substr(at_, 1);
      at_ += name.size();
    } else {
      const size_t close = in_.find('}', at_);
      if (close == std::string::npos) return emit(str("\\", letter));  // PCRE2 reports it
      name = in_.substr(at_ + 1, close - at_ - 1);
      at_ = close + 1;
    }
    const bool caret = !name.empty() && name[0] == '^';
    if (caret) name.erase(0, 1);
    const bool negated = (letter == 'P') != caret;
    // One- and two-letter names are general categories in both dialects.
    const bool script = name.size() > 2 && name.find_first_of(":=^{") == std::string::npos && is_script(name);
    const std::string additions = name.size() <= 2 ? unicode_additions(name) : "";
    if (additions.empty() || (in_class_ && negated)) {
      return emit(str(negated ? "\\P{" : "\\p{", script ? "sc:" : "", name, "}"));
    }
    emit_set(str("\\p{", name, "}", additions), negated);
  }

  void code_point() {
    const std::string digits = in_.substr(at_, 4);
    for (const char c : digits) {
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return emit("\\u");
    }
    if (digits.size() < 4) return emit("\\u");  // PCRE2 reports both
    at_ += 4;
    emit("\\x{" + digits + "}");
  }

  void open_class() {
    in_class_ = true;
    emit("[");
    if (peek() == '^') {
      emit("^");
      ++at_;
    }
    if (peek() == ']') {
      emit("\\]");
      ++at_;
    }
  }

  void class_member(char c) {
    if (c == ']') {
      in_class_ = false;
      emit("]");
    } else if (c == '&' && peek() == '&') {
      throw not_built("&& inside a character class");
    } else if (c == '[') {
      const size_t close = peek() == ':' ? in_.find(":]", at_) : std::string::npos;
      if (close == std::string::npos) throw not_built("a class inside a character class");
      bracket(in_.substr(at_ + 1, close - at_ - 1));
      at_ = close + 2;
    } else {
      emit(std::string(1, c));
    }
  }

  void bracket(const std::string& name) {
    for (const Bracket& known : kBrackets) {
      if (name == known.name) return emit(known.members);
    }
    if (name == "word") return emit(word_members(in_class_));
    throw not_built(str("[:", name, ":]"));
  }

  void group() {
    if (peek() == '*') throw node_.corrupt(str("nothing to repeat at offset ", at_, " of \"", in_, "\""));
    emit("(");
    if (peek() != '?') return;
    // Options: Ruby's m lets the dot match line ends, which is PCRE2's s.
    size_t end = at_ + 1;
    while (end < in_.size() && (in_[end] == 'i' || in_[end] == 'm' || in_[end] == 'x' || in_[end] == '-'))
      ++end;
    if (end == at_ + 1 || end == in_.size() || (in_[end] != ':' && in_[end] != ')')) return;
    std::string options = in_.substr(at_, end - at_);
    for (char& c : options) {
      if (c == 'm') c = 's';
    }
    emit(options);
    at_ = end;
  }

  // {n}, {n,}, {,m}, {n,m}; anything else is an ordinary brace in both dialects.
  void interval() {
    size_t end = at_;
    while (is_digit(in_[end])) ++end;
    const bool has_low = end > at_;
    bool has_comma = false, has_high = false;
    if (in_[end] == ',') {
      has_comma = true;
      const size_t high = ++end;
      while (is_digit(in_[end])) ++end;
      has_high = end > high;
    }
    if (in_[end] != '}' || !(has_low || has_high)) return emit("{");
    const char behind = end + 1 < in_.size() ? in_[end + 1] : '\0';
    // Ruby repeats the repetition where PCRE2 makes it possessive, and makes {n}? optional.
    if (behind == '+' || (behind == '?' && !has_comma))
      throw not_built(str("an interval followed by ", behind));
    emit(str("{", has_low ? "" : "0", in_.substr(at_, end + 1 - at_)));
    at_ = end + 1;
  }

  const JsonNode& node_;
  const std::string& in_;
  size_t at_ = 0;     // next byte to read
  size_t start_ = 0;  // first byte of the construct being read
  bool in_class_ = false;
  TranslatedPattern out_;
};

}  // namespace

TranslatedPattern translate_oniguruma(const JsonNode& node) { return Translator(node).run(); }

}  // namespace gramian::tokenizer
