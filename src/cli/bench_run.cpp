#include "cli/bench_run.h"

#include <chrono>

#include "base/format.h"
#include "cli/common.h"
#include "kernels/cpu_level.h"
#include "runtime/run_speed.h"

namespace gramian::cli {
namespace {

struct RunFlags {
  ModelFlags model;
  RunSpeedOptions options;
};

void run_model(const RunFlags& flags, const Common& common) {
  const auto pool = common.pool();
  const auto start = std::chrono::steady_clock::now();
  ResidentModel model(flags.model.folder, flags.model.open, pool);
  const std::chrono::duration<double> load = std::chrono::steady_clock::now() - start;
  const RunSpeed speed = measure_run(model, *pool, flags.options);
  const double weights = speed.weight_bytes * speed.decode_tokens_per_second;
  Json json;
  json["model"] = flags.model.folder;
  json["prompt_tokens"] = flags.options.prompt;
  json["decoded_tokens"] = flags.options.decoded;
  json["load_seconds"] = load.count();
  json["prefill_tokens_per_second"] = speed.prefill_tokens_per_second;
  json["decode_tokens_per_second"] = speed.decode_tokens_per_second;
  json["weight_bytes"] = speed.weight_bytes;
  json["weight_gbytes_per_second"] = weights / 1e9;
  json["read_bandwidth_gbytes_per_second"] = speed.read_bandwidth / 1e9;
  json["threads"] = pool->threads();
  json["cpu_level"] = name(cpu_level());
  json["kv_cache_bytes"] = speed.cache_bytes;
  json["resident_bytes"] = speed.resident;
  common.result(json, table({{"", "tokens/s", "weights GB/s", "of read bandwidth"},
                             {"prompt", fixed(speed.prefill_tokens_per_second, 1), "-", "-"},
                             {"decode", fixed(speed.decode_tokens_per_second, 1), fixed(weights / 1e9, 1),
                              fixed(weights / speed.read_bandwidth, 3)}}));
}

}  // namespace

void add_bench_run(CLI::App& verb) {
  const auto flags = std::make_shared<RunFlags>();
  const auto common = std::make_shared<Common>();
  CLI::App& run = *verb.add_subcommand(
      "run", "Tokens a second of a model, for a prompt and one by one, beside the memory's read bandwidth");
  add_model_flags(run, flags->model);
  add_adapter_flag(run, flags->model);
  add_kv_cache_flag(run, flags->options.kv_cache);
  const auto tokens = CLI::Range(int64_t{1}, int64_t{1} << 20);
  run.add_option("--prompt", flags->options.prompt, "Tokens of the prompt")
      ->check(tokens)
      ->capture_default_str();
  run.add_option("--decode", flags->options.decoded, "Tokens decoded behind it")
      ->check(tokens)
      ->capture_default_str();
  run.add_option("--repeats", flags->options.repeats, "Runs, whose medians count")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_common(run, common, [flags, common] { run_model(*flags, *common); });
}

}  // namespace gramian::cli
