// What tokenizers of both forms have names for.
#pragma once

#include <cstdint>
#include <span>

namespace gramian::gguf {

// tokenizer.ggml.token_type
enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// GGUF names the rule that splits text into words (tokenizer.ggml.pre) instead of telling it.
struct Splitting {
  const char* regex;
  const char* name;
};
std::span<const Splitting> splittings();

}  // namespace gramian::gguf
