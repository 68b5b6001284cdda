#include "formats/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "formats/tokenizer/unicode.h"

namespace gramian::tokenizer {
namespace {

constexpr bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Printable Latin-1 bytes stand for themselves; the others, in order, for U+0100 and up (GPT-2, encoder.py).
constexpr std::array<int16_t, 0x144> make_table() {
  std::array<int16_t, 0x144> byte_of{};
  for (int16_t& entry : byte_of) entry = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    byte_of[is_printable(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return byte_of;
}

constexpr std::array<int16_t, 0x144> kByteOf = make_table();
static_assert(kByteOf[0x120] == ' ' && kByteOf[0x143] == 0xAD);

}  // namespace

bool byte_level_bytes(std::string_view token, std::string& bytes) {
  bytes.clear();
  for (size_t at = 0; at < token.size();) {
    const char32_t c = next_code_point(token, at);
    if (c >= kByteOf.size() || kByteOf[c] < 0) return false;
    bytes.push_back(static_cast<char>(kByteOf[c]));
  }
  return true;
}

std::string byte_level_decode(std::string_view token) {
  std::string bytes;
  return byte_level_bytes(token, bytes) ? bytes : std::string(token);
}

}  // namespace gramian::tokenizer
