// What every verb shares: --json, --quiet, --threads, and how results and errors leave the program.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/format.h"
#include "base/log.h"
#include "base/parallel.h"
#include "pipeline/rows.h"
#include "runtime/resident_model.h"

namespace gramian {
class Ranks;  // pipeline/ranks.h
}

namespace gramian::cli {

using Json = nlohmann::ordered_json;

struct Common {
  bool json = false;
  bool quiet = false;
  int threads = 0;  // 0: all cores

  Log log() const { return Log(quiet ? LogLevel::quiet : LogLevel::normal); }
  // Sets LibTorch's threads too. The first thing that a verb's work does: it may start the program again (openmp.h).
  std::shared_ptr<ThreadPool> pool() const;
  // Prints `document` when --json was given, else `text` (a table or a few lines) unless --quiet.
  void result(const Json& document, const std::string& text) const;
};

// Refuses NaN too, which CLI::Range lets through.
CLI::Validator number_between(double low, double high);
// A 64-bit number without a sign: CLI11's own check goes through a double.
CLI::Validator seed_number();

// Adds the shared flags to a verb and runs `action` when it is chosen.
void add_common(CLI::App& verb, const std::shared_ptr<Common>& common, std::function<void()> action);

// The model folder, --dtype and --treat-as-tied of a verb that runs a model.
struct ModelFlags {
  std::string folder;
  OpenOptions open;
};
void add_model_flags(CLI::App& verb, ModelFlags& flags);
// --adapter of a verb that runs one model.
void add_adapter_flag(CLI::App& verb, ModelFlags& flags);
// --kv-cache-dtype of a verb that decodes; "auto" leaves nothing.
void add_kv_cache_flag(CLI::App& verb, std::optional<at::ScalarType>& type);
// --dtype of a verb that runs a model for its statistics.
void add_forward_dtype_flag(CLI::App& verb, std::string& dtype);
// --batch: rows per forward.
void add_batch_flag(CLI::App& verb, int64_t& batch);

// --samples, --sequence-length, --seed, --allow-fewer.
struct RowFlags {
  int64_t sequence_length = 512;
  const CLI::Option* length_option = nullptr;
  std::optional<int64_t> samples;
  std::optional<uint64_t> seed;
  bool allow_fewer = false;
  RowOptions options(int64_t samples_default) const;
};
void add_row_flags(CLI::App& verb, RowFlags& flags, const std::string& samples_help);

// --text or --rows with the flags of rows, or --protocol: what models are evaluated on.
struct EvaluationFlags {
  std::string text, rows_file, protocol;
  RowFlags rows;
  std::filesystem::path source() const { return rows_file.empty() ? text : rows_file; }
  // For a model in `folder`; says what they are, after `what`. Throws invalid_argument unless exactly one of the two was given.
  // `whole`: rows are not cut, and a .txt is one.
  RowSet load(const std::string& verb, const std::string& what, const std::string& folder, Log& log,
              bool whole = false) const;
  // Tokens before the first that is scored.
  int64_t context() const;
};
void add_evaluation_flags(CLI::App& verb, EvaluationFlags& flags);

// Before the model is loaded, what would fail after it ran or replace what is read.
void check_output_file(const std::filesystem::path& path, const std::filesystem::path& model,
                       const std::filesystem::path& input);

// Rows of cells as an aligned text table; the first row is the head, columns after the first are right-aligned.
std::string table(const std::vector<std::vector<std::string>>& rows);
// [low, high], with null for what is not finite.
Json interval(double low, double high);

// One word for a POSIX shell.
std::string shell_word(const std::filesystem::path& path);
// The command that runs, for a POSIX shell; run() says which.
void remember_command(int argc, char** argv);
const std::string& command_line();

// One per verb.
void add_quantize(CLI::App& app, Ranks* ranks);
void add_eval(CLI::App& app);
void add_logits(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_demo(CLI::App& app);
void add_report(CLI::App& app);
void add_verify(CLI::App& app);
void add_bench(CLI::App& app);
void add_imatrix(CLI::App& app);
void add_convert(CLI::App& app);
void add_probe(CLI::App& app);
void add_compare(CLI::App& app);
void add_smooth(CLI::App& app);
void add_rotate(CLI::App& app);
void add_options(CLI::App& app);

}  // namespace gramian::cli
