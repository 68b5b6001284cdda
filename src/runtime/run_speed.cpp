#include "runtime/run_speed.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/page_arena.h"
#include "base/resources.h"
#include "kernels/peak.h"
#include "runtime/generate.h"
#include "runtime/sequence.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of the experts of a layer's mixture, the share that a token is sent to.
double expert_share(const DecoderSpec& spec, int64_t layer) {
  if (spec.mixture.empty()) return 1;
  const RouterSpec& router = spec.mixture[static_cast<size_t>(layer)].router;
  return router.experts > 0 ? static_cast<double>(router.top_k) / static_cast<double>(router.experts) : 1;
}

double weight_bytes(const Model& model) {
  double bytes = 0;
  const auto& tensors = model.checkpoint().tensors();
  for (int64_t layer = 0; layer < model.spec().layers(); ++layer) {
    const std::string prefix = model.layer_prefix(layer);
    for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix); ++it) {
      const bool expert = it->first.find(".experts.") != std::string::npos;
      bytes +=
          static_cast<double>(it->second.bytes.size()) * (expert ? expert_share(model.spec(), layer) : 1);
    }
  }
  const auto head = tensors.find("lm_head.weight");
  const auto& found =
      head != tensors.end() ? head->second : tensors.at(model.prefix() + "embed_tokens.weight");
  return bytes + static_cast<double>(found.bytes.size());
}

struct Times {
  double prefill = 0, decode = 0;  // seconds
  int64_t cache_bytes = 0;
};

Times run_once(ResidentModel& model, const std::vector<int64_t>& prompt, const RunSpeedOptions& options) {
  Sequence sequence(model, {.tokens_max = options.prompt + options.decoded, .kv_cache = options.kv_cache});
  Times times;
  auto start = Clock::now();
  at::Tensor state = sequence.append(prompt);
  times.prefill = seconds_since(start);
  start = Clock::now();
  for (int64_t i = 0; i < options.decoded; ++i) {
    const auto id = model.logits(state).argmax().item<int64_t>();
    state = sequence.append(std::span(&id, 1));
  }
  times.decode = seconds_since(start);
  times.cache_bytes = sequence.cache_bytes();
  return times;
}

}  // namespace

RunSpeed measure_run(ResidentModel& model, ThreadPool& pool, const RunSpeedOptions& options) {
  GRAMIAN_CHECK(options.prompt > 0 && options.decoded > 0 && options.repeats > 0, "nothing to measure");
  const tensor::InferenceScope inference;
  if (const auto limit = position_limit(model.model()); limit && options.prompt + options.decoded > *limit) {
    throw Error(ErrorKind::invalid_argument, "bench run",
                str(options.prompt, " + ", options.decoded,
                    " tokens exceed the model's max_position_embeddings of ", *limit),
                "use a shorter --prompt or --decode");
  }
  std::mt19937 random(1);
  std::vector<int64_t> prompt;
  for (int64_t i = 0; i < options.prompt; ++i)
    prompt.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(model.model().spec().vocab)));

  // Beyond the last-level cache of most processors.
  constexpr int64_t kRead = int64_t{256} << 20;
  PageArena arena;
  std::shared_ptr<std::byte[]> memory;
  RunSpeed speed;
  std::vector<double> prefill, decode;
  for (int i = 0; i < options.repeats; ++i) {
    const Times times = run_once(model, prompt, options);
    prefill.push_back(static_cast<double>(options.prompt) / times.prefill);
    decode.push_back(static_cast<double>(options.decoded) / times.decode);
    if (i == 0) {
      speed.cache_bytes = times.cache_bytes;
      speed.resident = resident_bytes();
      memory = arena.take(kRead);
      std::fill_n(memory.get(), kRead, std::byte{1});
    }
    speed.read_bandwidth =
        std::max(speed.read_bandwidth,
                 read_bandwidth(cpu_level(), pool, std::span<const std::byte>(memory.get(), kRead), 3));
  }
  speed.prefill_tokens_per_second = median(prefill);
  speed.decode_tokens_per_second = median(decode);
  speed.weight_bytes = weight_bytes(model.model());
  return speed;
}

}  // namespace gramian
