// gramian demo: the bundled model quantized three ways and compared with itself.
#include "base/error.h"
#include "base/resources.h"
#include "cli/common.h"
#include "eval/evaluate.h"
#include "pipeline/method.h"
#include "pipeline/quantize.h"

namespace gramian::cli {
namespace {
namespace fs = std::filesystem;

struct Flags {
  std::string model;
  std::string output = "demo-out";
  RowFlags rows;
};

struct Variant {
  const char* name;
  const char* method;
  int64_t group_size;
};
constexpr Variant kVariants[] = {{"rtn-g128", "rtn", 128}, {"qqq-g128", "qqq", 128}, {"qqq-row", "qqq", -1}};

// models/tinystories of the current folder, else beside the program's build folder.
fs::path bundled_model() {
  const fs::path here = "models/tinystories";
  if (fs::exists(here / "config.json")) return here;
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path() / here;
}

Json row(const std::string& variant, uint64_t bytes, double bits, const EvalResult& eval, double seconds,
         int64_t peak) {
  Json json;
  json["variant"] = variant;
  json["bytes"] = bytes;
  json["bits_per_weight"] = bits;
  json["perplexity"] = eval.perplexity;
  json["kl_mean"] = eval.kl->mean;
  json["kl_ci95"] = interval(eval.kl->low, eval.kl->high);
  json["top1_agreement"] = eval.top1_agreement;
  json["seconds"] = seconds;
  json["peak_rss_bytes"] = peak;
  return json;
}

uint64_t weight_bytes(const Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) bytes += tensor.bytes.size();
  return bytes;
}

std::string text_of(const Json& rows) {
  std::vector<std::vector<std::string>> cells{{"variant", "size", "bits/weight", "perplexity",
                                               "KL to original", "95 % interval", "seconds", "peak memory"}};
  for (const Json& row : rows) {
    const bool original = row.at("variant") == "original";
    cells.push_back({row.at("variant"), human_bytes(row.at("bytes")), fixed(row.at("bits_per_weight"), 3),
                     fixed(row.at("perplexity"), 3), original ? "" : fixed(row.at("kl_mean"), 5),
                     original ? "" : fixed(row.at("kl_ci95")[0], 5) + " .. " + fixed(row.at("kl_ci95")[1], 5),
                     original ? "" : fixed(row.at("seconds"), 1), human_bytes(row.at("peak_rss_bytes"))});
  }
  return table(cells);
}

void run(const Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  const fs::path source = flags.model.empty() ? bundled_model() : fs::path(flags.model);
  if (!fs::exists(source / "config.json")) {
    throw Error(ErrorKind::invalid_argument, source.string(), "no model here",
                "run in the folder of the repository, or pass --model");
  }
  const Tokenizer tokenizer(source / "tokenizer.json");
  RowOptions eval_rows = flags.rows.options(0);
  eval_rows.samples.reset();
  const RowSet held_out =
      load_rows(source / "heldout.txt", eval_rows, [&]() -> const Tokenizer& { return tokenizer; }, log);
  log.info(str("demo: ", source.string(), ", evaluated on ", held_out.rows.size(), " held-out rows of ",
               flags.rows.sequence_length, " tokens"));

  reset_peak_rss();
  ResidentModel original(source, {}, pool);
  Json rows = Json::array();
  refuse_foreign_ids(held_out.rows, original.model().spec().vocab, source / "heldout.txt");
  {
    const EvalResult eval = evaluate(original, &original, held_out.rows, {}, log);
    const Checkpoint& checkpoint = original.model().checkpoint();
    const uint64_t bytes = weight_bytes(checkpoint);
    int64_t weights = 0;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      weights += static_cast<int64_t>(tensor.bytes.size() / dtype_bytes(tensor.dtype));
    }
    rows.push_back(row("original", bytes, 8.0 * static_cast<double>(bytes) / static_cast<double>(weights),
                       eval, 0, peak_rss_bytes()));
  }
  for (const Variant& variant : kVariants) {
    QuantizeJob job;
    job.source = source;
    job.output = fs::path(flags.output) / variant.name;
    job.method = variant.method;
    job.solve.grid.group_size = variant.group_size;
    if (find_method(job.method).needs_hessian) job.calibration = source / "calibration.txt";
    job.rows = flags.rows.options(128);
    job.force = true;
    log.info(str("quantizing ", variant.name));
    reset_peak_rss();
    const Json report = quantize(job, *pool, log);
    ResidentModel quantized(job.output, {}, pool);
    const EvalResult eval = evaluate(quantized, &original, held_out.rows, {}, log);
    rows.push_back(row(variant.name, report.at("weight_bytes"), report.at("bits_per_weight"), eval,
                       report.at("seconds"), report.at("peak_rss_bytes")));
  }
  Json json;
  json["rows"] = rows;
  json["output"] = flags.output;
  common.result(json, text_of(rows) + str("checkpoints are in ", flags.output, "/\n"));
}

}  // namespace

void add_demo(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand("demo", "Quantize the bundled model three ways and compare");
  verb.add_option("--model", flags->model,
                  "Folder with a model, calibration.txt and heldout.txt (default: the bundled one)");
  verb.add_option("-o,--output", flags->output,
                  "Folder for the quantized checkpoints; what it holds of them is replaced")
      ->capture_default_str();
  flags->rows.sequence_length = 256;  // what the bundled model was trained on
  add_row_flags(verb, flags->rows, "Calibration rows; without it 128");
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
