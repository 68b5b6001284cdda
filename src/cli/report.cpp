// gramian report WHAT: the page of a saved demo, of a finished quantization, or of one that broke off.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "cli/common.h"
#include "cli/page.h"
#include "eval/job_page.h"
#include "eval/report_page.h"
#include "formats/checkpoint.h"
#include "formats/gguf/model_reader.h"
#include "formats/json.h"
#include "pipeline/output_gguf.h"

namespace gramian::cli {
namespace fs = std::filesystem;
namespace {

struct Flags {
  fs::path document;
  std::string telemetry;
  std::string output = "report.html";
};

// Telemetry has a document on every line.
bool is_telemetry(const std::string& text) {
  return text.starts_with("{\"event\"") || text.starts_with("{\"ts\"");
}

std::string page_of(const Flags& flags) {
  const bool folder = fs::is_directory(flags.document);
  const bool model = folder || gguf::is_model_file(flags.document);
  const fs::path file = model ? report_of(flags.document) : flags.document;
  if (model && !fs::exists(file))
    throw Error(ErrorKind::invalid_argument, flags.document.string(),
                folder ? str("holds no ", kReportName) : str("has no report beside it, ", file.string()),
                "name an output of gramian quantize; of an unfinished job the file of its --telemetry");
  const std::string text = read_text(file), where = file.string();
  JobDocument job;
  if (is_telemetry(text)) {
    job = read_job_telemetry(text, where);
  } else {
    const Json json = parse_json(text, where);
    if (!json.is_object() || !json.contains("method")) return report_page(json, where);
    // What is printed is what is shown.
    job = read_job_report(Json::parse(json.dump(-1, ' ', false, Json::error_handler_t::replace)), where);
    const fs::path place = fs::weakly_canonical(file).parent_path();
    job.name = place.filename().string();
  }
  if (!flags.telemetry.empty())
    job.memory = read_job_telemetry(read_text(flags.telemetry), flags.telemetry).memory;
  return job_page(job, where);
}

void run(const Flags& flags, const Common& common) {
  check_page(flags.output);
  write_atomically(flags.output, page_of(flags));
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
  verb.add_option("-o,--output", flags->output, "Page to write, one self-contained HTML file")
      ->capture_default_str();
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
