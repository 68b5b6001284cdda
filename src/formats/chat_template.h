// The chat template of a model folder: a Jinja program that turns messages into the text its model was trained on.
//
// C++ has no Jinja that Debian carries and that renders what transformers renders, so the template runs in a child process:
// jinja2 of the Python that set-up made (chat_template.py says how it is confined).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"

namespace gramian {

struct Conversation {
  nlohmann::ordered_json messages;  // a list of objects
  std::string where;                // its place, for messages ("rows.jsonl, line 3")
};

struct ChatOptions {
  bool add_generation_prompt = false;  // ends with the head of the assistant's message
  std::string date;                    // YYYY-MM-DD, what strftime_now() formats; empty: today
  // Bounds of one call, on top of what its input takes.
  int64_t cpu_seconds = 20;
  int64_t memory_bytes = int64_t{512} << 20;
  int64_t output_bytes = int64_t{64} << 20;
};

class ChatTemplate {
 public:
  // chat_template.jinja, else `chat_template` of tokenizer_config.json (a text, or of a list of named ones "default"), else
  // chat_template.json; nothing when the folder has none of them. Special tokens come from tokenizer_config.json. Throws
  // corrupt_data.
  static std::optional<ChatTemplate> find(const std::filesystem::path& folder);

  // One text per conversation, all rendered in one child process. Special tokens stand in the texts: tokenize them without
  // adding more. Nothing, and a warning, when there is no usable Python: $GRAMIAN_PYTHON if it is set, else that of the build,
  // else python3, with jinja2 3.1.6 or newer. Throws corrupt_data with the template's own message when it fails or exceeds its
  // bounds, invalid_argument for messages that are not UTF-8.
  std::optional<std::vector<std::string>> render(const std::vector<Conversation>& conversations,
                                                 const ChatOptions& options, Log& log) const;

  const std::string& text() const noexcept { return text_; }
  const std::filesystem::path& source() const noexcept { return source_; }
  // bos_token, eos_token, ... as the template's variables.
  const std::map<std::string, std::string>& variables() const noexcept { return variables_; }

 private:
  ChatTemplate() = default;
  std::string request(const std::vector<Conversation>& conversations, const ChatOptions& options) const;
  std::vector<std::string> texts_of(const nlohmann::ordered_json& reply,
                                    const std::vector<Conversation>& conversations) const;

  std::filesystem::path source_;
  std::string text_;
  std::map<std::string, std::string> variables_;
};

}  // namespace gramian
