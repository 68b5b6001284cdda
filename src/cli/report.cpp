// gramian report WHAT: the page of a saved demo, of a finished quantization, or of one that broke off.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "cli/common.h"
#include "cli/continuation.h"
#include "cli/page.h"
#include "eval/job_page.h"
#include "eval/report_page.h"
#include "formats/checkpoint.h"
#include "formats/gguf/model_reader.h"
#include "formats/json.h"
#include "formats/model_files.h"
#include "pipeline/output_gguf.h"

namespace gramian::cli {
namespace fs = std::filesystem;
namespace {

struct Flags {
  fs::path document;
  std::string telemetry, evaluation, reference, text;
  std::vector<std::string> prompts;
  std::string output = "report.html";
};

// Telemetry has a document on every line.
bool is_telemetry(const std::string& text) {
  return text.starts_with("{\"event\"") || text.starts_with("{\"ts\"");
}

// The prompts as ids, each with its text: those given, else the beginnings of a few rows.
std::vector<std::pair<std::string, std::vector<int64_t>>> prompts_of(const Flags& flags,
                                                                     const Tokenizer& tokenizer, Log& log) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> prompts;
  for (const std::string& prompt : flags.prompts)
    prompts.emplace_back(prompt, tokenizer.encode(prompt, {.add_special_tokens = true}));
  if (flags.text.empty()) return prompts;
  constexpr int64_t kTokens = 32, kRows = 3;
  const RowSet rows =
      load_rows(flags.text, {.sequence_length = kTokens, .samples_default = kRows}, flags.reference, log);
  for (const TokenRow& row : rows.rows) prompts.emplace_back(tokenizer.decode(row, true), row);
  return prompts;
}

std::vector<ReportStory> stories_of(const Flags& flags, const fs::path& output, const Common& common) {
  if (flags.prompts.empty() && flags.text.empty()) {
    throw Error(ErrorKind::invalid_argument, "--reference", "there is nothing to continue",
                "give --prompt, several times if you like, or --text");
  }
  Log log = common.log();
  const auto pool = common.pool();
  const Tokenizer tokenizer = open_tokenizer(flags.reference);
  const auto prompts = prompts_of(flags, tokenizer, log);
  std::vector<ReportStory> stories;
  for (const auto& prompt : prompts) {
    ReportStory& story = stories.emplace_back();
    story.prompt = prompt.first;
    story.variant = "quantized";
  }
  const auto tell = [&](const fs::path& folder, std::string ReportStory::* continued) {
    ResidentModel model(folder, {}, pool);
    for (size_t i = 0; i < prompts.size(); ++i)
      stories[i].*continued = continuation(model, tokenizer, prompts[i].second, log);
  };
  // One model is in memory at a time.
  tell(flags.reference, &ReportStory::original);
  tell(output, &ReportStory::quantized);
  return stories;
}

// The model that a report lies in or beside.
fs::path output_of(const fs::path& report) {
  const fs::path place = fs::weakly_canonical(report);
  const fs::path beside = place.parent_path() / place.stem().stem();  // X.gguf of X.gguf.report.json
  return report_of(beside) == place && gguf::is_model_file(beside) ? beside : place.parent_path();
}

std::string page_of(const Flags& flags, const Common& common) {
  const bool folder = fs::is_directory(flags.document);
  const bool model = folder || gguf::is_model_file(flags.document);
  const fs::path file = model ? report_of(flags.document) : flags.document;
  if (model && !fs::exists(file))
    throw Error(ErrorKind::invalid_argument, flags.document.string(),
                folder ? str("holds no ", kReportName) : str("has no report beside it, ", file.string()),
                "name an output of gramian quantize; of an unfinished job the file of its --telemetry");
  const std::string text = read_text(file), where = file.string();
  JobDocument job;
  const bool telemetry = is_telemetry(text);
  if (telemetry) {
    job = read_job_telemetry(text, where);
  } else {
    const Json json = parse_json(text, where);
    if (!json.is_object() || !json.contains("method")) {
      if (flags.evaluation.empty() && flags.reference.empty()) return report_page(json, where);
      throw Error(ErrorKind::invalid_argument, where, "is no report of a quantization",
                  "--evaluation and --reference belong to an output of gramian quantize");
    }
    // What is printed is what is shown.
    job = read_job_report(Json::parse(json.dump(-1, ' ', false, Json::error_handler_t::replace)), where);
    job.name = output_of(file).filename().string();
  }
  if (!flags.telemetry.empty())
    job.memory = read_job_telemetry(read_text(flags.telemetry), flags.telemetry).memory;
  if (!flags.evaluation.empty())
    job.evaluation =
        read_evaluation(parse_json(read_text(flags.evaluation), flags.evaluation), flags.evaluation);
  if (!flags.reference.empty()) {
    if (telemetry) {
      throw Error(ErrorKind::invalid_argument, "--reference",
                  where + " is telemetry, which has no output beside it", "name the output folder");
    }
    job.stories = stories_of(flags, output_of(file), common);
  }
  return job_page(job, where);
}

void run(const Flags& flags, const Common& common) {
  check_page(flags.output);
  write_atomically(flags.output, page_of(flags, common));
  Json json;
  json["output"] = flags.output;
  common.result(json, "page written to " + flags.output + "\n");
}

}  // namespace

void add_report(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand(
      "report", "Make the page of a quantization, finished or broken off, or of a saved demo");
  verb.add_option("document", flags->document,
                  "An output folder of gramian quantize or the report in it, a file of --telemetry (of a job "
                  "that broke "
                  "off, too), or what gramian demo --json printed")
      ->required();
  verb.add_option("--telemetry", flags->telemetry,
                  "Telemetry of the same job, for the line of its memory over time");
  verb.add_option(
      "--evaluation", flags->evaluation,
      "What gramian eval --json printed of the output: perplexity and divergence, also by context");
  CLI::Option* reference =
      verb.add_option("--reference", flags->reference,
                      "Original model folder: how it and the output go on with the same prompts");
  verb.add_option("--prompt", flags->prompts, "What both are to go on with; may be given several times")
      ->needs(reference);
  verb.add_option("--text", flags->text, "Text whose rows begin the prompts: .txt, .jsonl or .safetensors")
      ->needs(reference);
  verb.add_option("-o,--output", flags->output, "Page to write, one self-contained HTML file")
      ->capture_default_str();
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
