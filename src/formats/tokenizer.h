// tokenizer.json (the Hugging Face tokenizers format): byte-level BPE.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gramian {

struct EncodeOptions {
  // Run the post-processor's template (for example a begin-of-text token in front).
  bool add_special_tokens = false;
  // Recognize special added tokens that stand literally in the text; false treats them as ordinary text.
  bool parse_special = true;
};

class Tokenizer {
 public:
  // Throws corrupt_data for a damaged file and unsupported (naming the part and its type) for a kind not built.
  explicit Tokenizer(const std::filesystem::path& tokenizer_json);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  // `text` is UTF-8; throws invalid_argument with the byte offset otherwise. Thread-safe.
  std::vector<int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Throws invalid_argument for an id that the vocabulary does not have. Bad UTF-8 becomes U+FFFD.
  std::string decode(const std::vector<int64_t>& ids, bool skip_special = false) const;
  // Largest id plus one.
  int64_t vocab_size() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gramian
