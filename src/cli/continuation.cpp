#include "cli/continuation.h"

#include "runtime/generate.h"
#include "runtime/generation_config.h"

namespace gramian::cli {

std::string continuation(ResidentModel& model, const Tokenizer& tokenizer, const std::vector<int64_t>& prompt,
                         Log& log) {
  constexpr int64_t kTokens = 120;
  const Checkpoint& checkpoint = model.model().checkpoint();
  const GenerationConfig config = read_generation_config(
      checkpoint.folder(), {checkpoint.config(), (checkpoint.folder() / "config.json").string()});
  const GenerateOptions options{.tokens = kTokens, .eos = config.eos};
  return generate(model, tokenizer, prompt, options, [](std::string_view) {}, log).text;
}

}  // namespace gramian::cli
