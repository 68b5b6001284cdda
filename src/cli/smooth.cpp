// gramian smooth MODEL -o OUT --calibration F
#include "pipeline/smooth.h"

#include "cli/common.h"

namespace gramian::cli {
namespace {

struct Flags {
  SmoothJob job;
  RowFlags rows;
};

void run(Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  SmoothJob& job = flags.job;
  job.rows = flags.rows.options(128);
  const Smoothed smoothed = smooth(job, *pool, log);
  for (const std::string& line : smoothed.left_alone) log.warn("left alone: " + line);
  Json json;
  json["output"] = job.output.string();
  json["alpha"] = job.alpha;
  json["folds"] = smoothed.folds;
  json["left_alone"] = smoothed.left_alone;
  json["tokens"] = smoothed.tokens;
  json["bytes"] = smoothed.bytes;
  common.result(json, str("factors moved at ", smoothed.folds, " places, after ", grouped(smoothed.tokens),
                          " calibration tokens; ", human_bytes(static_cast<double>(smoothed.bytes)),
                          " written to ", job.output.string(), "\n"));
}

}  // namespace

void add_smooth(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand("smooth",
                                       "Write the same model with channels that are easier to quantize: "
                                       "factors move from norms and linear layers into "
                                       "those that read them");
  SmoothJob& job = flags->job;
  verb.add_option("model", job.source, "Model folder")->required();
  verb.add_option("-o,--output", job.output, "Folder to make; quantize it like any model")->required();
  verb.add_option("--calibration", job.calibration,
                  "Calibration rows: .txt, .jsonl or .safetensors (input_ids)")
      ->required();
  verb.add_option(
          "--alpha", job.alpha,
          "0 evens out the columns of the weights, 1 the channels that they read; between them, both in part")
      ->check(number_between(0.0, 1.0))
      ->capture_default_str();
  verb.add_flag("--force", job.force, "Replace an output folder that exists");
  add_row_flags(verb, flags->rows, "Calibration rows; without it 128, or all of a file of ready rows");
  add_batch_flag(verb, job.batch);
  add_forward_dtype_flag(verb, job.dtype);
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
