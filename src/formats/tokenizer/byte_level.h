// The GPT-2 table between bytes and printable characters, in which byte-level vocabularies are written.
#pragma once

#include <string>
#include <string_view>

namespace gramian::tokenizer {

// Writes the bytes that `token` stands for to `bytes` and returns true; returns false when a character of
// `token` is not in the table (added tokens and padding entries may be so). `token` is well-formed UTF-8.
bool byte_level_bytes(std::string_view token, std::string& bytes);

// The bytes that `token` decodes to: by the table, or its own UTF-8 when it has a character outside the
// table.
std::string byte_level_decode(std::string_view token);

}  // namespace gramian::tokenizer
