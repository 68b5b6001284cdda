// gramian report DOCUMENT.json: the page of a saved `gramian demo --json`.
#include "base/file.h"
#include "cli/common.h"
#include "cli/page.h"
#include "formats/json.h"

namespace gramian::cli {
namespace {

struct Flags {
  std::string document;
  std::string output = "report.html";
};

void run(const Flags& flags, const Common& common) {
  check_page(flags.output);
  write_page(flags.output, parse_json(read_text(flags.document), flags.document), flags.document);
  Json json;
  json["output"] = flags.output;
  common.result(json, "page written to " + flags.output + "\n");
}

}  // namespace

void add_report(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand("report", "Make the page of a saved demo again");
  verb.add_option("document", flags->document, "What gramian demo --json printed")->required();
  verb.add_option("-o,--output", flags->output, "Page to write, one self-contained HTML file")
      ->capture_default_str();
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
