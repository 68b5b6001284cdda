// gramian imatrix MODEL --calibration F -o FILE
#include <filesystem>

#include "base/error.h"
#include "cli/common.h"
#include "formats/imatrix_file.h"
#include "pipeline/importance.h"

namespace gramian::cli {
namespace {

namespace fs = std::filesystem;

struct Flags {
  ImportanceJob job;
  RowFlags rows;
  fs::path output;
  std::string form = "gguf";
  std::string experts = "routed";
  std::vector<fs::path> merge;
};

void run(Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  ImportanceJob& job = flags.job;
  job.rows = flags.rows.options(0);
  job.all_experts = flags.experts == "all";
  check_output_file(flags.output, job.source, job.calibration);
  // Read first: what is wrong with them shows before the work.
  ImportanceMatrix others;
  for (const fs::path& file : flags.merge) others.add(read_importance(file), file.string());

  MeasuredImportance measured = measure_importance(job, *pool, log);
  ImportanceMatrix& matrix = measured.matrix;
  if (!flags.merge.empty()) matrix.add(others, flags.merge.front().string());
  if (flags.form == "legacy") {
    write_legacy_importance(flags.output, matrix);
  } else {
    write_importance(flags.output, matrix);
  }
  for (const std::string& name : measured.without_data)
    log.warn("no token reached " + name + ": its importance is 1");
  Json json;
  json["output"] = flags.output.string();
  json["form"] = flags.form;
  json["weights"] = matrix.weights.size();
  json["rows"] = measured.rows;
  json["tokens"] = measured.tokens;
  json["merged"] = flags.merge.size();
  json["without_data"] = measured.without_data;
  common.result(json, str("importance of ", matrix.weights.size(), " weights over ", grouped(measured.tokens),
                          " tokens in ", measured.rows, " rows written to ", flags.output.string(), "\n"));
}

}  // namespace

void add_imatrix(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand(
      "imatrix",
      "Measure the importance of each weight's input columns, for codecs that weigh their error by it");
  ImportanceJob& job = flags->job;
  verb.add_option("model", job.source, "Model folder")->required();
  verb.add_option("--calibration", job.calibration,
                  "Calibration rows: .txt, .jsonl or .safetensors (input_ids)")
      ->required();
  verb.add_option("-o,--output", flags->output, "File to write")->required();
  verb.add_option("--form", flags->form, "gguf, or the legacy form that older programs read")
      ->check(CLI::IsMember({"gguf", "legacy"}))
      ->capture_default_str();
  verb.add_option("--merge", flags->merge, "Importance files of the same model whose sums are added")
      ->check(CLI::ExistingFile);
  add_row_flags(verb, flags->rows, "Calibration rows; without it all");
  add_batch_flag(verb, job.batch);
  add_forward_dtype_flag(verb, job.dtype);
  verb.add_option(
          "--experts", flags->experts,
          "Tokens that an expert's importance is taken of: routed = those sent to it, all = every one")
      ->check(CLI::IsMember({"routed", "all"}))
      ->capture_default_str();
  verb.add_flag("--treat-as-tied", job.treat_as_tied,
                "Use the embedding as head when the checkpoint has no head");
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
