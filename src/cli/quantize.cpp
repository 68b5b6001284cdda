// gramian quantize MODEL -o OUT
#include "pipeline/quantize.h"

#include <algorithm>

#include "base/error.h"
#include "cli/accumulation.h"
#include "cli/common.h"
#include "cli/solve_flags.h"
#include "pipeline/ranks.h"

namespace gramian::cli {
namespace {

struct Flags {
  QuantizeJob job;
  std::string calibration, imatrix;
  std::string compat;
  std::string lanes = "cpu:1";
  std::string memory;
  std::string activations = "auto";
  std::string sequential;
  std::string experts = "routed";
  RowFlags rows;
  AccumulationFlags accumulation;
  SolveFlags solve;
};

int parse_lanes(const std::string& text) {
  int count = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "cpu:%d%c", &count, &rest) == 1 && count >= 1 && count <= 1024) return count;
  const bool other_device = text.starts_with("cuda") || text.starts_with("mps") || text.starts_with("xpu");
  throw Error(
      other_device ? ErrorKind::unsupported : ErrorKind::invalid_argument, "--lanes",
      str("'", text, "'",
          other_device ? ": only CPU lanes are built" : " is not of the form cpu:N, N from 1 to 1024"),
      "for example --lanes cpu:2");
}

std::string summary(const Json& report) {
  std::string text =
      str(report.at("modules").size(), " modules quantized, ", fixed(report.at("bits_per_weight"), 3),
          " bits per weight (", fixed(report.at("bits_per_weight_total"), 3), " over the whole model, ",
          human_bytes(report.at("weight_bytes")), ")\n");
  text += str(fixed(report.at("seconds"), 1), " s, peak memory ", human_bytes(report.at("peak_rss_bytes")));
  if (report.at("tokens") > 0) text += str(", ", report.at("tokens").get<int64_t>(), " calibration tokens");
  text += "\n";
  if (report.contains("type")) {
    text += "types:";
    for (const auto& [type, share] : report.at("type_shares").items())
      text += str(" ", type, " ", fixed(100 * share.get<double>(), 1), " %");
    for (const auto& [name, type] : report.at("other_types").items())
      text += str("; ", name, " ", type.get<std::string>());
    text += "\n";
  }
  if (report.at("fallbacks") > 0)
    text += str(report.at("fallbacks").get<int64_t>(), " modules fell back to rounding without a Hessian\n");
  if (!report.at("skipped").empty()) text += str(report.at("skipped").size(), " layers left unquantized\n");
  return text;
}

std::string dry_run_text(const Json& report) {
  std::string text = str(report.at("layers"), " layers, ", report.at("quantized_weights"),
                         " weights to quantize, ", human_bytes(report.at("weight_bytes")), " to write\n");
  const Json& plan = report.at("plan");
  if (plan.is_null()) return text;
  for (const auto& [what, bytes] : plan.at("parts").items())
    text += str("  ", what, ": ", human_bytes(bytes), "\n");
  return text + str("memory at most ", human_bytes(plan.at("peak_bytes")), " (at ",
                    plan.at("worst_module").get<std::string>(), "), smallest possible ",
                    human_bytes(plan.at("smallest_bytes")),
                    "; activations wait: ", plan.at("activations").get<std::string>(), "\nabout ",
                    fixed(plan.at("seconds"), 0), " s\n");
}

// The long names of what the command line has.
std::vector<std::string> given_options(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options()) {
    if (option->count() > 0 && !option->get_lnames().empty()) names.push_back("--" + option->get_lnames()[0]);
  }
  return names;
}

void run(Flags& flags, const Common& common, const CLI::App& verb) {
  QuantizeJob& job = flags.job;
  job.given = given_options(verb);
  Log log = job.ranks == nullptr || job.ranks->writes() ? common.log() : Log(LogLevel::quiet);
  const auto pool = common.pool();
  if (!flags.calibration.empty()) job.calibration = flags.calibration;
  if (!flags.imatrix.empty()) job.imatrix = flags.imatrix;
  job.compat_gptqmodel = !flags.compat.empty();
  settle_solve(flags.solve, job);
  job.accumulation = flags.accumulation.settings(job.accumulation);
  job.rows = flags.rows.options(128);
  job.lanes = parse_lanes(flags.lanes);
  if (!flags.sequential.empty()) job.sequential = parse_sequential(flags.sequential);
  job.all_experts = flags.experts == "all";
  job.budget.activations = parse_activations(flags.activations);
  if (!flags.memory.empty()) {
    job.budget.memory_bytes = parse_bytes(flags.memory);
    if (!job.budget.memory_bytes) {
      throw Error(ErrorKind::invalid_argument, "--memory", str("'", flags.memory, "' is not a size"),
                  "for example --memory 1.5GiB");
    }
  }
  job.command = command_line();
  const Json report = quantize(job, *pool, log);
  if (job.ranks != nullptr && !job.ranks->writes()) return;
  if (job.dry_run) return common.result(report, dry_run_text(report));
  common.result(report, summary(report) + "written to " + job.output.string() + "\n");
}

}  // namespace

void add_quantize(CLI::App& app, Ranks* ranks) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand("quantize", "Quantize a model folder into a checkpoint of fewer bits");
  QuantizeJob& job = flags->job;
  job.ranks = ranks;
  verb.add_option("model", job.source, "Model folder")->required();
  verb.add_option("-o,--output", job.output,
                  "Folder to make, or .gguf file to write; appears only when it is complete")
      ->required();
  add_solve_flags(verb, flags->solve);
  verb.add_option("--calibration", flags->calibration,
                  "Calibration rows: .txt, .jsonl or .safetensors (input_ids)");
  verb.add_option(
      "--imatrix", flags->imatrix,
      "Method imatrix: importance from this file (gramian imatrix, llama-imatrix) instead of a forward");
  add_row_flags(verb, flags->rows, "Calibration rows; without it 128, or all of a file of ready rows");
  verb.add_option(
          "--held-out", job.held_out,
          "Set this many calibration rows aside: each finished layer is tried on them, in the original "
          "and in the quantized form, and one that loses much is warned of at once")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  verb.add_option(
          "--held-out-limit", job.held_out_limit,
          "Share of its output that a layer or linear layer may lose on held-out rows without a warning")
      ->check(number_between(0, 1e6))
      ->needs("--held-out")
      ->capture_default_str();
  verb.add_option("--batch", job.batch, "Calibration rows per forward")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb.add_option("--lanes", flags->lanes,
                  "Where batches run: cpu:N runs N batches side by side, and solves N modules whose weights "
                  "lie ready")
      ->capture_default_str();
  add_forward_dtype_flag(verb, job.dtype);
  verb.add_option("--compat", flags->compat,
                  "Follow another tool's rules: gptqmodel (7.7.0), to compare with it")
      ->check(CLI::IsMember({"gptqmodel"}));
  verb.add_option("--sequential", flags->sequential,
                  "Which weights stand before a layer when its statistics are taken: subset = all before it "
                  "quantized (default), layer = those of earlier layers, none = the original model");
  verb.add_option(
      "--statistics", job.statistics,
      "With --sequential none: keep the statistics of the original model in this file, or take them from it "
      "where it is there, so that other settings need no other forward");
  add_accumulation_flags(verb, flags->accumulation);
  verb.add_flag_callback(
      "--no-shared-inputs", [flags] { flags->job.shared_inputs = false; },
      "Sum every linear layer's input by itself, also where several read one; the result is the same");
  verb.add_option(
          "--experts", flags->experts,
          "Tokens that an expert's statistics are taken of: routed = those sent to it, all = every one; "
          "the output is routed either way")
      ->check(CLI::IsMember({"routed", "all"}))
      ->capture_default_str();
  verb.add_option("--memory", flags->memory,
                  "Most memory the job may take, like 1.5GiB; it changes how batches wait, never the result");
  verb.add_option(
          "--activations", flags->activations,
          "How batches wait for their layer: suspend = in memory, spill = in a file, replay = computed "
          "again, auto = the first that fits --memory")
      ->capture_default_str();
  verb.add_option("--scratch", job.budget.scratch,
                  "Folder for spilled activations (default: beside the output)")
      ->check(CLI::ExistingDirectory);
  verb.add_option("--min-expert-tokens", job.min_expert_tokens,
                  "Experts with fewer calibration tokens are rounded plainly")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  verb.add_flag("--dry-run", job.dry_run,
                "Print what the job would hold and how long it would take, and stop");
  verb.add_flag("--skip-unfit", job.skip_unfit, "Leave layers unquantized whose shape the format refuses");
  verb.add_flag("--skip-scan", job.skip_scan, "Do not look for NaN and infinity in the source first");
  verb.add_flag("--treat-as-tied", job.treat_as_tied,
                "Use the embedding as head when the checkpoint has no head");
  verb.add_flag("--force", job.force,
                "Replace an output folder that exists; discard an unfinished job of this output");
  verb.add_flag("--resume", job.resume,
                "Go on with an unfinished job of this output. The same command does so without it; needed "
                "beside --force");
  verb.add_option("--telemetry", job.telemetry,
                  "Append what the job does to this file, a JSON object a line");
  verb.add_option(
      "--metrics", job.metrics,
      "Keep how far the job is in this file, in the text format that Prometheus' node exporter collects");
  verb.add_option("--watchdog", job.watchdog_seconds,
                  "Say which stage the job stands in when nothing has moved for so many seconds; 0 for never")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  add_common(verb, common, [flags, common, &verb] { run(*flags, *common, verb); });
}

}  // namespace gramian::cli
