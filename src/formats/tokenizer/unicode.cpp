#include "formats/tokenizer/unicode.h"

#include <algorithm>
#include <cstring>

namespace gramian::tokenizer {
namespace {

struct Scan {
  size_t length = 0;  // bytes of the sequence, or of its well-formed beginning (at least 1)
  bool valid = false;
};

// Table 3-7 of the Unicode standard: the second byte's range depends on the first.
Scan scan_sequence(const unsigned char* bytes, size_t left) noexcept {
  const unsigned lead = bytes[0];
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (left < 2 || bytes[1] < low || bytes[1] > high) return {1, false};
  for (size_t i = 2; i < length; ++i) {
    if (i >= left || (bytes[i] & 0xC0) != 0x80) return {i, false};
  }
  return {length, true};
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) noexcept {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t at = 0;
  while (at < text.size()) {
    if (bytes[at] < 0x80) {
      uint64_t word = 0;
      if (text.size() - at >= sizeof word) {
        std::memcpy(&word, bytes + at, sizeof word);
        if ((word & 0x8080808080808080u) == 0) {
          at += sizeof word;
          continue;
        }
      }
      ++at;
      continue;
    }
    const Scan scan = scan_sequence(bytes + at, text.size() - at);
    if (!scan.valid) return at;
    at += scan.length;
  }
  return std::string_view::npos;
}

char32_t next_code_point(std::string_view text, size_t& at) noexcept {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data()) + at;
  const size_t length = utf8_length(text[at]);
  at += length;
  switch (length) {
    case 1:
      return bytes[0];
    case 2:
      return (bytes[0] & 0x1Fu) << 6 | (bytes[1] & 0x3Fu);
    case 3:
      return (bytes[0] & 0x0Fu) << 12 | (bytes[1] & 0x3Fu) << 6 | (bytes[2] & 0x3Fu);
    default:
      return (bytes[0] & 0x07u) << 18 | (bytes[1] & 0x3Fu) << 12 | (bytes[2] & 0x3Fu) << 6 |
             (bytes[3] & 0x3Fu);
  }
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t good = std::min(find_invalid_utf8(text), text.size());
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    out.append("\xEF\xBF\xBD");
    text.remove_prefix(
        scan_sequence(reinterpret_cast<const unsigned char*>(text.data()), text.size()).length);
  }
  return out;
}

size_t unfinished_utf8(std::string_view text) noexcept {
  const auto* end = reinterpret_cast<const unsigned char*>(text.data()) + text.size();
  for (size_t count = 1; count <= std::min<size_t>(3, text.size()); ++count) {
    const unsigned char* begin = end - count;
    if ((*begin & 0xC0) == 0x80) continue;
    // All that is there fits, and the lead byte asks for more.
    const bool begins = *begin >= 0xC2 && *begin <= 0xF4 && utf8_length(static_cast<char>(*begin)) > count &&
                        scan_sequence(begin, count).length == count;
    return begins ? count : 0;
  }
  return 0;
}

bool is_white_space(char32_t c) noexcept {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace gramian::tokenizer
