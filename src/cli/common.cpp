#include "cli/common.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "cli/openmp.h"
#include "eval/evaluate.h"
#include "formats/json.h"
#include "kernels/cpu_level.h"
#include "tensor/ops.h"

namespace gramian::cli {

std::shared_ptr<ThreadPool> Common::pool() const {
  restart_with_blocking_openmp();
  cpu_level();  // an unknown $GRAMIAN_CPU_LEVEL is refused before any work
  const int count =
      threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  tensor::set_threads(count);
  return std::make_shared<ThreadPool>(count);
}

void Common::result(const Json& document, const std::string& text) const {
  // Paths need not be UTF-8, JSON must be.
  if (json) {
    std::printf("%s\n", document.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else if (!quiet) {
    std::printf("%s", text.c_str());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    throw Error(ErrorKind::io, "standard output", "cannot write the result");
}

void add_common(CLI::App& verb, const std::shared_ptr<Common>& common, std::function<void()> action) {
  verb.add_flag("--json", common->json, "Print one JSON document on stdout");
  verb.add_flag("--quiet,-q", common->quiet, "Print warnings and errors only");
  verb.add_option("--threads", common->threads, "CPU threads; 0 takes all cores")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  verb.callback(std::move(action));
}

CLI::Validator number_between(double low, double high) {
  const auto check = [low, high](std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!text.empty() && end == text.c_str() + text.size() && value >= low && value <= high) return "";
    return str(text, " is not a number from ", low, " to ", high);
  };
  return {check, str("FLOAT in [", low, " - ", high, "]")};
}

CLI::Validator seed_number() {
  const auto check = [](std::string& text) -> std::string {
    uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && rest == end) return "";
    return text + " is not a whole number from 0 to 2^64 - 1";
  };
  return {check, "UINT64"};
}

void add_model_flags(CLI::App& verb, ModelFlags& flags) {
  verb.add_option("model", flags.folder, "Model folder, plain or QQQ")->required();
  verb.add_option("--dtype", flags.open.dtype, "auto, float32, bfloat16 or float16")->capture_default_str();
  verb.add_flag("--treat-as-tied", flags.open.treat_as_tied,
                "Use the embedding as head when the checkpoint has no head");
}

void add_adapter_flag(CLI::App& verb, ModelFlags& flags) {
  verb.add_option("--adapter", flags.open.adapter,
                  "Folder of LoRA adapters (PEFT: adapter_config.json, adapter_model.safetensors), run "
                  "beside the model's "
                  "linear layers");
}

void add_kv_cache_flag(CLI::App& verb, std::optional<at::ScalarType>& type) {
  verb.add_option_function<std::string>(
          "--kv-cache-dtype",
          [&type](const std::string& name) {
            type = name == "auto" ? std::nullopt : std::optional(parse_dtype(name));
          },
          "Type in which attention keeps keys and values: auto (the model's), float16 or bfloat16, half the "
          "memory "
          "of float32")
      ->check(CLI::IsMember({"auto", "float16", "bfloat16"}))
      ->default_str("auto");
}

void add_forward_dtype_flag(CLI::App& verb, std::string& dtype) {
  verb.add_option(
          "--dtype", dtype,
          "Type of the forward: auto (bfloat16 where the CPU multiplies it), float32, bfloat16, float16")
      ->capture_default_str();
}

void add_batch_flag(CLI::App& verb, int64_t& batch) {
  verb.add_option("--batch", batch, "Rows per forward")->check(CLI::Range(1, 1 << 20))->capture_default_str();
}

RowOptions RowFlags::options(int64_t samples_default) const {
  return {.sequence_length = sequence_length,
          .samples = samples,
          .samples_default = samples_default,
          .seed = seed,
          .allow_fewer = allow_fewer,
          .length_given = length_option != nullptr && length_option->count() > 0};
}

void add_row_flags(CLI::App& verb, RowFlags& flags, const std::string& samples_help) {
  verb.add_option("--samples", flags.samples, samples_help)->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  flags.length_option = verb.add_option("--sequence-length", flags.sequence_length,
                                        "Tokens per row of .txt and .jsonl (ready rows keep their own)")
                            ->check(CLI::Range(2, 1 << 24))
                            ->capture_default_str();
  verb.add_option(
          "--seed", flags.seed,
          "Choose rows at random with this seed (default: evenly from .txt, first of .jsonl; ready rows "
          "are always the first)")
      ->check(seed_number());
  verb.add_flag("--allow-fewer", flags.allow_fewer,
                "Accept less than half of the rows that --samples asks for");
}

// The protocol of Model Optimizer's comparisons: windows of so many tokens, so many of them, and the second half scored.
constexpr int64_t kProtocolLength = 512, kProtocolContext = 257;
constexpr size_t kProtocolRows = 100;

int64_t EvaluationFlags::context() const { return protocol.empty() ? 1 : kProtocolContext; }

RowSet EvaluationFlags::load(const std::string& verb, const std::string& what, const std::string& folder,
                             Log& log, bool whole) const {
  if (text.empty() == rows_file.empty())
    throw Error(ErrorKind::invalid_argument, verb, "needs exactly one of --text and --rows");
  RowOptions options = rows.options(0);
  if (!protocol.empty())
    options = {.sequence_length = kProtocolLength, .samples_default = 0, .length_fixed = true};
  options.whole = whole;
  RowSet set = load_rows(source(), options, folder, log);
  if (!protocol.empty() && set.rows.size() > kProtocolRows) {
    for (size_t i = kProtocolRows; i < set.rows.size(); ++i)
      set.tokens -= static_cast<int64_t>(set.rows[i].size());
    set.rows.resize(kProtocolRows);
    set.policy += str(", the first ", kProtocolRows);
  }
  const auto longest = std::max_element(set.rows.begin(), set.rows.end(),
                                        [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (longest == set.rows.end() || static_cast<int64_t>(longest->size()) <= context())
    throw Error(ErrorKind::invalid_argument, source().string(), too_short_for(context()), "give longer rows");
  log.info(str(what, ": ", set.rows.size(), " rows, ", set.tokens, " tokens; ", set.policy));
  return set;
}

void add_evaluation_flags(CLI::App& verb, EvaluationFlags& flags) {
  verb.add_option("--text", flags.text, "Text to evaluate on: .txt or .jsonl");
  verb.add_option("--rows", flags.rows_file, "Ready rows to evaluate on: .safetensors with input_ids");
  add_row_flags(verb, flags.rows, "Rows to evaluate; without it all");
  auto* protocol = verb.add_option(
      "--protocol", flags.protocol,
      "wikitext-kl: windows of 512 tokens of --text, the first 100 or all that there are, scored from "
      "position 256 on");
  protocol->check(CLI::IsMember({"wikitext-kl"}));
  for (const char* other : {"--rows", "--samples", "--sequence-length", "--seed", "--allow-fewer"})
    protocol->excludes(verb.get_option(other));
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (i == 0 ? row[i] + padding : padding + row[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

Json interval(double low, double high) { return Json::array({number_or_null(low), number_or_null(high)}); }

void check_output_file(const std::filesystem::path& path, const std::filesystem::path& model,
                       const std::filesystem::path& input) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw Error(ErrorKind::invalid_argument, path.string(), str("no folder ", folder.string()),
                "make it first");
  }
  refuse_output_file(path, {model, input});
}

std::string shell_word(const std::filesystem::path& path) {
  std::string word = path.string();
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

namespace {
std::string& known_command() {
  static std::string command;
  return command;
}
}  // namespace

void remember_command(int argc, char** argv) {
  std::string& command = known_command();
  command.clear();
  for (int i = 0; i < argc; ++i)
    command += i == 0 ? shell_word(std::filesystem::path(argv[i]).filename()) : " " + shell_word(argv[i]);
}

const std::string& command_line() { return known_command(); }

}  // namespace gramian::cli
