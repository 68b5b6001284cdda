#include "runtime/generate.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/error.h"
#include "runtime/sequence.h"
#include "runtime/stop_text.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr int64_t kTokensDefault = 128;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_prompt(const std::vector<int64_t>& prompt, int64_t vocab) {
  if (prompt.empty())
    throw Error(ErrorKind::invalid_argument, "prompt", "holds no token", "give it some text");
  const auto foreign =
      std::find_if(prompt.begin(), prompt.end(), [&](int64_t id) { return id < 0 || id >= vocab; });
  if (foreign == prompt.end()) return;
  throw Error(ErrorKind::invalid_argument, "prompt",
              str("token id ", *foreign, ", position ", foreign - prompt.begin(),
                  ", is outside the model's vocabulary of ", vocab),
              "use the tokenizer.json that came with the model");
}

// How many tokens to make behind `prompt` of them.
int64_t tokens_to_make(int64_t prompt, const GenerateOptions& options, const Model& model) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const int64_t limit = position_limit(model).value_or(kNoLimit), context = options.context.value_or(limit);
  const int64_t wanted = options.tokens.value_or(kTokensDefault), room = context - prompt;
  const auto refuse = [](const std::string& what, const std::string& hint) {
    throw Error(ErrorKind::invalid_argument, "prompt", what, hint);
  };
  if (context > limit)
    refuse(str("a context of ", context, " exceeds the model's max_position_embeddings of ", limit),
           str("use --ctx ", limit, " or less"));
  const std::string name = options.context ? "--ctx" : "the model's max_position_embeddings";
  if (room < 1)
    refuse(str("has ", prompt, " tokens, ", name, " is ", context),
           prompt < limit ? "raise --ctx" : "give a shorter prompt");
  // A context that was asked for ends the answer; the model's own limit is no end that anybody chose.
  if (!options.context && options.tokens && wanted > room)
    refuse(str("has ", prompt, " tokens; with ", wanted, " new ones they exceed ", name, " of ", context),
           str("use -n ", room, " or less, or a shorter prompt"));
  return std::min(wanted, room);
}

// The answer as it grows: from token ids to text, up to a stop text.
class Answer {
 public:
  Answer(const Tokenizer& tokenizer, const std::vector<int64_t>& prompt, const GenerateOptions& options,
         const std::function<void(std::string_view)>& emit, Log& log)
      : tokenizer_(tokenizer),
        stream_(tokenizer, /*skip_special=*/true),
        stop_(options.stops),
        emit_(emit),
        log_(log) {
    if (!options.continues_prompt) return;
    for (const int64_t id : prompt) stream_.push(id);
  }

  // Returns whether a stop text has come.
  bool push(int64_t id) {
    if (tokenizer_.contains(id)) {
      give(stop_.push(stream_.push(id)));
    } else {
      log_.warn(str("the model chose token id ", id,
                    ", which tokenizer.json does not have: it stands for no text"));
    }
    return stop_.stopped();
  }
  // Returns the whole text.
  std::string finish() {
    give(stop_.push(stream_.finish()));
    give(stop_.finish());
    return std::move(text_);
  }
  bool stopped() const noexcept { return stop_.stopped(); }

 private:
  void give(const std::string& part) {
    if (part.empty()) return;
    text_ += part;
    emit_(part);
  }
  const Tokenizer& tokenizer_;
  TextStream stream_;
  StopText stop_;
  const std::function<void(std::string_view)>& emit_;
  Log& log_;
  std::string text_;
};

}  // namespace

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::eos:
      return "eos";
    case Finish::stop:
      return "stop";
    case Finish::length:
      return "length";
    case Finish::interrupted:
      return "interrupted";
  }
  return "";
}

std::optional<int64_t> position_limit(const Model& model) {
  std::optional<int64_t> limit;
  for (const RopeSpec& rope : model.spec().ropes) limit = std::max(limit.value_or(0), rope.max_positions);
  return limit;
}

Generation generate(ResidentModel& model, const Tokenizer& tokenizer, const std::vector<int64_t>& prompt,
                    const GenerateOptions& options, const std::function<void(std::string_view)>& emit,
                    Log& log) {
  const tensor::InferenceScope inference;
  check_prompt(prompt, model.model().spec().vocab);
  const int64_t tokens = tokens_to_make(static_cast<int64_t>(prompt.size()), options, model.model());
  Sequence sequence(
      model, {.tokens_max = static_cast<int64_t>(prompt.size()) + tokens, .kv_cache = options.kv_cache});
  Sampler sampler(options.sampler);
  Answer answer(tokenizer, prompt, options, emit, log);
  Generation result;
  auto start = Clock::now();
  try {
    at::Tensor state = sequence.append(prompt);
    result.prefill_seconds = seconds_since(start);
    start = Clock::now();
    for (;;) {
      const at::Tensor logits = model.logits(state).contiguous();
      const int64_t id =
          sampler({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())}, sequence.ids());
      ++result.decoded;
      if (std::find(options.eos.begin(), options.eos.end(), id) != options.eos.end()) {
        result.finish = Finish::eos;
        break;
      }
      result.ids.push_back(id);
      if (answer.push(id) || result.decoded == tokens) break;
      state = sequence.append({&id, 1});
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::interrupted) throw;
    result.finish = Finish::interrupted;
  }
  (result.decoded == 0 ? result.prefill_seconds : result.decode_seconds) = seconds_since(start);
  result.text = answer.finish();
  if (answer.stopped() && result.finish == Finish::length) result.finish = Finish::stop;
  result.cache_bytes = sequence.cache_bytes();
  return result;
}

}  // namespace gramian
