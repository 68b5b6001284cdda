// tokenizer.json (the Hugging Face tokenizers format): byte-level and byte-fallback BPE.
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
  // The same of a text; `where` is for messages.
  static Tokenizer parse(const std::string& tokenizer_json, const std::string& where);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  // `text` is UTF-8; throws invalid_argument with the byte offset otherwise. Thread-safe.
  std::vector<int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Throws invalid_argument for an id that the vocabulary does not have. Bad UTF-8 becomes U+FFFD.
  std::string decode(const std::vector<int64_t>& ids, bool skip_special = false) const;
  // Whether a token has this id.
  bool contains(int64_t id) const noexcept;
  // Largest id plus one.
  int64_t vocab_size() const noexcept;

 private:
  friend class TextStream;
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Decodes tokens as they come. Every part is whole UTF-8 characters; all parts one behind the other are what decode() makes of
// all tokens at once. Text is held back only while a later token may change it: an unfinished character, a run of byte tokens.
class TextStream {
 public:
  // `tokenizer` must outlive the stream. `skip_special` as in decode().
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text that is certain now; may be empty. Throws like decode().
  std::string push(int64_t id);
  // The rest.
  std::string finish();

 private:
  std::string take_pending();
  const Tokenizer& tokenizer_;
  bool skip_special_;
  size_t pushed_ = 0;
  bool begun_ = false;                // some text has been given out
  std::string bytes_;                 // held back: of a byte-level tokenizer
  std::vector<std::string> pending_;  // of others, with an anchor in front once begun_
};

}  // namespace gramian
