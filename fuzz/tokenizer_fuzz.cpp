// Any bytes as a tokenizer.json and, behind a NUL, a text: refused with gramian::Error, or ids of tokens, which decode at once and one by
// one to the same text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "formats/tokenizer.h"
#include "input_files.h"

namespace {

using gramian::Tokenizer;

void round_trip(const Tokenizer& tokenizer, const std::string& text) {
  for (const bool special : {false, true}) {
    const std::vector<int64_t> ids =
        tokenizer.encode(text, {.add_special_tokens = special, .parse_special = special});
    if (!std::all_of(ids.begin(), ids.end(), [&](int64_t id) { return tokenizer.contains(id); }))
      std::abort();
    const std::string whole = tokenizer.decode(ids, special);
    gramian::TextStream stream(tokenizer, special);
    std::string parts;
    for (const int64_t id : ids) parts += stream.push(id);
    if (parts + stream.finish() != whole) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = gramian::fuzz::parts_of(data, size, 2);
  try {
    const Tokenizer tokenizer = Tokenizer::parse(std::string(parts[0]), "tokenizer.json");
    const std::string_view tail = parts[0].substr(parts[0].size() - std::min<size_t>(parts[0].size(), 64));
    for (const std::string& text :
         {std::string("It's 12 o'clock,\n  caf\xC3\xA9 \xE2\x96\x81 e\xCC\x81 aaaaaaaaaaaa"),
          std::string(parts[1]), std::string(tail)}) {
      try {
        round_trip(tokenizer, text);
      } catch (const gramian::Error& error) {
        // Not UTF-8, no entry for a byte; a pattern that is too costly; what the pattern does is not built.
        if (error.kind() == gramian::ErrorKind::internal) std::abort();
      }
    }
  } catch (const gramian::Error& error) {
    const gramian::ErrorKind kind = error.kind();
    if (kind != gramian::ErrorKind::corrupt_data && kind != gramian::ErrorKind::unsupported) std::abort();
  }
  return 0;
}
