// Numbers as people read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gramian {

// "16.4 MB", "1.23 GB" (powers of ten).
std::string human_bytes(double bytes);
// "1.5GiB", "800 MB", "1024": a size with an optional unit (B; kB, MB, GB, TB of ten; KiB, MiB, GiB, TiB of two; K, M, G, T
// like the latter), upper or lower case. Nothing for another text, for less than one byte or more than 2^60.
std::optional<int64_t> parse_bytes(const std::string& text);
// `digits` after the point; from 1e15 in magnitude on with an exponent, as nobody counts such digits.
std::string fixed(double value, int digits);
// Like fixed(), but with three digits and an exponent ("8.12e+09") from 1e6 on and where fixed() would show a value other
// than 0 as 0.
std::string fixed_or_scientific(double value, int digits);
// "26,775".
std::string grouped(int64_t value);
// "\n  first\n  second": below a message.
std::string below(const std::vector<std::string>& lines);
// Of ASCII letters.
std::string lower_case(std::string_view text);
// "a, b, c": what `name` says of each.
template <class Range, class Name>
std::string listed(const Range& range, const Name& name) {
  std::string text;
  for (const auto& one : range) {
    if (!text.empty()) text += ", ";
    text += name(one);
  }
  return text;
}
// Digits after the point that show `value` with `significant` digits, from 0 to 9; 0 and what is not finite need none.
int decimals_of(double value, int significant);

}  // namespace gramian
