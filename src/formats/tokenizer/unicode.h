// UTF-8: validation, decoding of code points, and the replacement of bad sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gramian::tokenizer {

// Offset of the first byte that does not belong to well-formed UTF-8 (no surrogates, nothing above U+10FFFF,
// no overlong form), or std::string_view::npos.
size_t find_invalid_utf8(std::string_view text) noexcept;

// Bytes of the code point that starts with `lead`; for well-formed UTF-8 only.
inline size_t utf8_length(char lead) noexcept {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The code point at `at`, which is advanced past it; for well-formed UTF-8 only.
char32_t next_code_point(std::string_view text, size_t& at) noexcept;

void append_utf8(std::string& out, char32_t code_point);

// Copies `bytes`; each maximal part of a bad sequence becomes one U+FFFD (Unicode 15, section 3.9,
// "Substitution of Maximal Subparts").
std::string replace_invalid_utf8(std::string_view bytes);

// Bytes at the end of `bytes` that begin a sequence which more bytes may complete: 0 to 3.
size_t unfinished_utf8(std::string_view bytes) noexcept;

// Unicode White_Space.
bool is_white_space(char32_t code_point) noexcept;

}  // namespace gramian::tokenizer
