#define PCRE2_CODE_UNIT_WIDTH 8
#include "formats/tokenizer/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <limits>

#include "formats/tokenizer/unicode.h"

namespace gramian::tokenizer {
namespace {

template <class T, void (*release)(T*)>
struct Release {
  void operator()(T* object) const noexcept { release(object); }
};
using Code = std::unique_ptr<pcre2_code, Release<pcre2_code, pcre2_code_free>>;
using CompileContext =
    std::unique_ptr<pcre2_compile_context, Release<pcre2_compile_context, pcre2_compile_context_free>>;
using MatchContext =
    std::unique_ptr<pcre2_match_context, Release<pcre2_match_context, pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Release<pcre2_match_data, pcre2_match_data_free>>;

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return str("PCRE2 error ", code);
  return reinterpret_cast<const char*>(buffer);
}

struct CompileFault {
  std::string message;
  size_t offset = 0;  // in the pattern given to PCRE2
};

constexpr uint32_t kPatternOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
constexpr uint32_t kLiteralOptions = PCRE2_UTF | PCRE2_LITERAL;

// Returns null and fills `fault` for a pattern that is not accepted.
Code compile(std::string_view pattern, uint32_t options, CompileFault& fault) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  GRAMIAN_CHECK(context != nullptr, "no memory for a PCRE2 context");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error,
                          &offset, context.get()));
  if (code == nullptr) {
    fault = {message_of(error), offset};
    return code;
  }
  // Without JIT the interpreter matches the same, only slower: the result of this call does not matter.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

Code compile_own(std::string_view pattern, uint32_t options, const std::string& where) {
  CompileFault fault;
  Code code = compile(pattern, options, fault);
  if (code == nullptr) {
    throw Error(ErrorKind::corrupt_data, where,
                str("PCRE2 refuses the pattern: ", fault.message, " at offset ", fault.offset));
  }
  return code;
}

}  // namespace

struct Regex::State {
  Code code;
  std::string where;
};

Regex::Regex(std::unique_ptr<State> state) : state_(std::move(state)) {}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

Regex::Regex(const JsonNode& node) {
  const TranslatedPattern pattern = translate_oniguruma(node);
  CompileFault fault;
  Code code = compile(pattern.text, kPatternOptions, fault);
  if (code == nullptr) {
    const size_t source =
        fault.offset < pattern.origin.size() ? pattern.origin[fault.offset] : node.string().size();
    throw node.corrupt(str("not a regular expression: ", fault.message, " at offset ", source, " of \"",
                           node.string(), "\""));
  }
  state_ = std::make_unique<State>(State{std::move(code), node.file() + ": " + node.path()});
}

Regex::Regex(std::string_view pcre2_pattern, std::string where) {
  Code code = compile_own(pcre2_pattern, kPatternOptions, where);
  state_ = std::make_unique<State>(State{std::move(code), std::move(where)});
}

Regex Regex::literal(std::string_view text, std::string where) {
  Code code = compile_own(text, kLiteralOptions, where);
  return Regex(std::make_unique<State>(State{std::move(code), std::move(where)}));
}

namespace {

// One search over one text; holds what PCRE2 needs for it.
class Matcher {
 public:
  Matcher(const pcre2_code* code, std::string_view text)
      : code_(code),
        text_(text),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        steps_(10'000'000 + 100 * static_cast<uint64_t>(text.size())) {
    GRAMIAN_CHECK(data_ != nullptr && context_ != nullptr, "no memory for a PCRE2 match");
    pcre2_set_heap_limit(context_.get(),
                         kHeapMin + static_cast<uint32_t>(std::min<size_t>(text.size(), kHeapMin)));
  }

  // The first match at or behind `from`; false when there is none.
  bool next(size_t from, ByteRange& range, const std::string& where) {
    int result = match_within_steps(from, PCRE2_NO_UTF_CHECK);
    // The JIT's stack is small and fixed; the interpreter takes its memory from the heap.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
      result = match_within_steps(from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {
      throw Error(ErrorKind::corrupt_data, where,
                  str("the regular expression failed at byte ", from, " of a text of ", text_.size(),
                      " bytes: ", message_of(result)),
                  "the tokenizer's pattern is too costly for this text");
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data_.get());
    // \K and look-behind tricks can move the start behind the end or in front of `from`.
    if (offsets[0] < from || offsets[1] < offsets[0]) {
      throw Error(ErrorKind::unsupported, where, "a match that begins before its search (\\K) is not built");
    }
    range = {offsets[0], offsets[1]};
    return true;
  }

 private:
  static constexpr uint32_t kHeapMin = 64 << 10;  // KiB
  static constexpr uint64_t kFewSteps = 10'000;

  // Backtracking through a run as long as the text is legitimate, exponential blow-up is not, nor is a match of each place that
  // takes as long as the text: all matches together have `steps_`, of which those that need few take none. What a match took is
  // known by the limit that let it end.
  int match_within_steps(size_t from, uint32_t options) {
    constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
    for (uint64_t limit = kFewSteps;;) {
      pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(std::min(limit, kMost)));
      const int result = match(from, options);
      const bool ended = result != PCRE2_ERROR_MATCHLIMIT;
      if (limit > kFewSteps) steps_ -= std::min(limit, steps_);
      if (ended || steps_ <= kFewSteps) return result;
      limit = std::min(4 * limit, steps_);
    }
  }

  int match(size_t from, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from, options,
                       data_.get(), context_.get());
  }

  const pcre2_code* code_;
  std::string_view text_;
  MatchData data_;
  MatchContext context_;
  uint64_t steps_;
};

}  // namespace

const std::string& Regex::where() const noexcept { return state_->where; }

void Regex::find_all(std::string_view text, std::vector<ByteRange>& matches) const {
  Matcher matcher(state_->code.get(), text);
  size_t from = 0;
  bool matched = false;
  size_t matched_end = 0;
  ByteRange range;
  while (from <= text.size() && matcher.next(from, range, state_->where)) {
    if (range.begin == range.end && matched && range.end == matched_end) {
      from += from < text.size() ? utf8_length(text[from]) : 1;
      continue;
    }
    matches.push_back(range);
    from = matched_end = range.end;
    matched = true;
  }
}

bool Regex::matches_somewhere(std::string_view text) const {
  ByteRange range;
  return Matcher(state_->code.get(), text).next(0, range, state_->where);
}

}  // namespace gramian::tokenizer
