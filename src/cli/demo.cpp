// gramian demo: the bundled model quantized several ways and compared with itself, with a page to look at.
#include <ctime>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/resources.h"
#include "cli/common.h"
#include "cli/continuation.h"
#include "cli/page.h"
#include "cli/solve_flags.h"
#include "eval/evaluate.h"
#include "eval/report_page.h"
#include "formats/model_files.h"
#include "kernels/cpu_level.h"
#include "pipeline/method.h"
#include "pipeline/quantize.h"
#include "tensor/ops.h"

namespace gramian::cli {
namespace {
namespace fs = std::filesystem;

struct Flags {
  std::string model;
  std::string output = "demo-out";
  std::string page = "report.html";
  std::string prompt = "One day, a girl named Lily found a small box in the garden.";
  RowFlags rows;
};

struct Variant {
  const char* name;
  const char* method;
  const char* format;
  int64_t group_size;
  bool tells_story = false;
};
constexpr Variant kVariants[] = {{"rtn-g128", "rtn", "qqq", 128},
                                 {"gptq-g128", "gptq", "gptq", 128},
                                 {"qqq-g128", "qqq", "qqq", 128, true},
                                 {"qqq-row", "qqq", "qqq", -1},
                                 {"w4a8-g128", "qqq", "compressed-tensors", 128}};

// models/tinystories of the current folder, else beside the program's build folder.
fs::path bundled_model() {
  const fs::path here = "models/tinystories";
  if (fs::exists(here / "config.json")) return here;
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path() / here;
}

// "2026-11-29T19:31:05Z".
std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

std::string row_arguments(const RowFlags& rows) {
  return str(rows.samples ? str(" --samples ", *rows.samples) : "", " --sequence-length ",
             rows.sequence_length, rows.seed ? str(" --seed ", *rows.seed) : "",
             rows.allow_fewer ? " --allow-fewer" : "");
}

Json row(const std::string& variant, uint64_t bytes, double bits, const EvalResult& eval, double seconds,
         int64_t peak, Json job) {
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
  json["job"] = std::move(job);
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

// The stories one after the other, their lines broken as a terminal wants it.
std::string stories_of(const Json& document) {
  constexpr size_t kWidth = 110;
  std::string text;
  for (const auto& [variant, story] : document.at("stories").items()) {
    text += "\n" + variant + ":\n ";
    size_t width = 1;
    std::istringstream words(document.at("prompt").get<std::string>() + story.get<std::string>());
    for (std::string word; words >> word;) {
      if (width + word.size() >= kWidth) {
        text += "\n ";
        width = 1;
      }
      text += " " + word;
      width += word.size() + 1;
    }
    text += "\n";
  }
  return text;
}

// The demo at work: the model, what it is evaluated on, and the document that grows.
class Demo {
 public:
  Demo(const Flags& flags, const Common& common)
      : flags_(flags), log_(common.log()), pool_(common.pool()), source_(model_folder(flags)) {}

  Json document(const Common& common) {
    const RowSet held_out = held_out_rows();
    reset_peak_rss();
    ResidentModel original(source_, {}, pool_);
    refuse_foreign_ids(held_out.rows, original.model().spec().vocab, held_out_file());
    const EvalResult baseline = evaluate(original, &original, held_out.rows, {}, log_);
    Json rows = Json::array({original_row(original.model().checkpoint(), baseline)});
    stories_["original"] = story(original);
    for (const Variant& variant : kVariants) rows.push_back(variant_row(variant, original, held_out));
    Json json;
    json["gramian"] = GRAMIAN_VERSION;
    json["libtorch"] = tensor::libtorch_version();
    json["model"] = fs::canonical(source_).filename().string();
    json["date"] = utc_now();
    json["cpu"] = cpu_name();
    json["cpu_level"] = name(cpu_level());
    json["threads"] = pool_->threads();
    json["held_out_rows"] = held_out.rows.size();
    json["held_out_tokens"] = baseline.tokens;
    json["prompt"] = flags_.prompt;
    json["stories"] = stories_;
    json["rows"] = std::move(rows);
    json["commands"] = commands(common);
    json["output"] = flags_.output;
    return json;
  }

 private:
  static fs::path model_folder(const Flags& flags) {
    const fs::path source = flags.model.empty() ? bundled_model() : fs::path(flags.model);
    if (fs::exists(source / "config.json")) return source;
    throw Error(ErrorKind::invalid_argument, source.string(), "no model here",
                "run in the folder of the repository, or pass --model");
  }
  fs::path held_out_file() const { return source_ / "heldout.txt"; }

  RowSet held_out_rows() {
    RowOptions options = flags_.rows.options(0);
    options.samples.reset();
    RowSet rows = load_rows(held_out_file(), options, source_, log_);
    log_.info(str("demo: ", source_.string(), ", evaluated on ", rows.rows.size(), " held-out rows of ",
                  flags_.rows.sequence_length, " tokens"));
    return rows;
  }

  static Json original_row(const Checkpoint& checkpoint, const EvalResult& eval) {
    const uint64_t bytes = weight_bytes(checkpoint);
    int64_t weights = 0;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      weights += static_cast<int64_t>(tensor.bytes.size() / dtype_bytes(tensor.dtype));
    }
    return row("original", bytes, 8.0 * static_cast<double>(bytes) / static_cast<double>(weights), eval, 0,
               peak_rss_bytes(), nullptr);
  }

  Json variant_row(const Variant& variant, ResidentModel& original, const RowSet& held_out) {
    QuantizeJob job;
    job.source = source_;
    job.output = fs::path(flags_.output) / variant.name;
    SolveFlags solve;
    solve.method = variant.method;
    solve.format = variant.format;
    solve.settings.group_size = variant.group_size;
    settle_solve(solve, job);
    if (find_method(job.method).calibrated()) job.calibration = source_ / "calibration.txt";
    job.rows = flags_.rows.options(128);
    job.force = true;
    log_.info(str("quantizing ", variant.name));
    reset_peak_rss();
    Json report = quantize(job, *pool_, log_);
    ResidentModel quantized(job.output, {}, pool_);
    const EvalResult eval = evaluate(quantized, &original, held_out.rows, {}, log_);
    if (variant.tells_story) stories_[variant.name] = story(quantized);
    return row(variant.name, report.at("weight_bytes"), report.at("bits_per_weight"), eval,
               report.at("seconds"), report.at("peak_rss_bytes"), report);
  }

  std::string story(ResidentModel& model) {
    const Tokenizer tokenizer = open_tokenizer(source_);
    return continuation(model, tokenizer, tokenizer.encode(flags_.prompt, {.add_special_tokens = true}),
                        log_);
  }

  // The demo's own command line, and the ones that do its parts.
  Json commands(const Common& common) const {
    const std::string threads = common.threads > 0 ? str(" --threads ", common.threads) : "";
    const std::string rows = row_arguments(flags_.rows), source = shell_word(source_);
    Json lines = Json::array({str("gramian demo --model ", source, " --output ", shell_word(flags_.output),
                                  " --prompt ", shell_word(flags_.prompt), rows, threads)});
    RowFlags held_out = flags_.rows;
    held_out.samples.reset();
    for (const Variant& variant : kVariants) {
      const std::string output = shell_word(fs::path(flags_.output) / variant.name);
      const bool calibrated = find_method(variant.method).calibrated();
      lines.push_back(
          str("gramian quantize ", source, " --output ", output, " --method ", variant.method, " --format ",
              variant.format, " --group-size ", variant.group_size,
              calibrated ? str(" --calibration ", shell_word(source_ / "calibration.txt"), rows) : "",
              threads, " --force"));
      lines.push_back(str("gramian eval ", output, " --reference ", source, " --text ",
                          shell_word(held_out_file()), row_arguments(held_out), threads));
    }
    return lines;
  }

  const Flags& flags_;
  Log log_;
  std::shared_ptr<ThreadPool> pool_;
  fs::path source_;
  Json stories_;
};

void run(const Flags& flags, const Common& common) {
  if (!flags.page.empty()) check_page(flags.page);
  const Json document = Demo(flags, common).document(common);
  std::string text =
      text_of(document.at("rows")) + stories_of(document) + str("\ncheckpoints are in ", flags.output, "/\n");
  if (!flags.page.empty()) {
    write_atomically(flags.page, report_page(document, "the demo"));
    text += str("the page to look at is ", flags.page, "\n");
  }
  common.result(document, text);
}

}  // namespace

void add_demo(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand(
      "demo", "Quantize the bundled model several ways and compare, with a page to look at");
  verb.add_option("--model", flags->model,
                  "Folder with a model, calibration.txt and heldout.txt (default: the bundled one)");
  verb.add_option("-o,--output", flags->output,
                  "Folder for the quantized checkpoints; what it holds of them is replaced")
      ->capture_default_str();
  verb.add_option("--page", flags->page, "Page to write, one self-contained HTML file; '' for none")
      ->capture_default_str();
  verb.add_option("--prompt", flags->prompt, "What the original and the W4A8 model are to continue")
      ->check([](const std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); },
              "")
      ->capture_default_str();
  flags->rows.sequence_length = 256;  // what the bundled model was trained on
  add_row_flags(verb, flags->rows, "Calibration rows; without it 128");
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
