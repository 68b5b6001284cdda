// Generation: a prompt goes through the model in chunks, then one token after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "formats/tokenizer.h"
#include "runtime/resident_model.h"
#include "runtime/sampler.h"

namespace gramian {

struct GenerateOptions {
  // New tokens at most; without a value 128, or as many as there is room for.
  std::optional<int64_t> tokens = std::nullopt;
  // Tokens of prompt and answer together at most; it bounds the cache. Without a value what the two need.
  std::optional<int64_t> context = std::nullopt;
  std::optional<at::ScalarType> kv_cache = std::nullopt;  // as Sequence has it
  SamplerOptions sampler{};
  std::vector<int64_t> eos{};        // ids that end the answer
  std::vector<std::string> stops{};  // texts that end it
  // The answer's text goes on where the prompt's ends; false: it stands alone. They differ in the blank that some tokenizers put
  // before the first word of a text.
  bool continues_prompt = true;
};

enum class Finish { eos, stop, length, interrupted };
const char* finish_name(Finish finish);

struct Generation {
  std::vector<int64_t> ids;  // of the answer, without the token of `eos` that ended it
  std::string text;          // without special tokens, and without the stop text that ended it
  Finish finish = Finish::length;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t decoded = 0;  // tokens chosen, the one that ended it included
  int64_t cache_bytes = 0;
};

// max_position_embeddings; nothing where the model has no positions to run out of.
std::optional<int64_t> position_limit(const Model& model);

// `emit` gets the text in parts, each whole UTF-8 characters. Ctrl-C ends the answer: Finish::interrupted. Throws
// invalid_argument for an empty prompt, ids outside the vocabulary, or more tokens than `context` or the model has room for;
// numerical where the logits are not finite.
Generation generate(ResidentModel& model, const Tokenizer& tokenizer, const std::vector<int64_t>& prompt,
                    const GenerateOptions& options, const std::function<void(std::string_view)>& emit,
                    Log& log);

}  // namespace gramian
