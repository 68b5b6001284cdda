// gramian probe MODEL: whether the module tree of a model says the truth about shared inputs.
#include "base/error.h"
#include "base/file.h"
#include "cli/common.h"
#include "formats/json.h"
#include "models/sharing/layer_tree.h"
#include "pipeline/preflight.h"
#include "pipeline/sharing_probe.h"

namespace gramian::cli {
namespace {

struct Flags {
  ModelFlags model;
  std::string text, tree, experts = "all";
};

constexpr size_t kTextRows = 2;

// Rows of different lengths over the whole vocabulary, always the same.
std::vector<TokenRow> spread_rows(int64_t vocab) {
  std::vector<TokenRow> rows;
  uint64_t id = 1;
  for (const int64_t length : {24, 7, 1}) {
    TokenRow& row = rows.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      row.push_back(static_cast<int64_t>(id >> 33) % vocab);
      id = id * 6364136223846793005 + 1442695040888963407;  // Knuth, MMIX
    }
  }
  return rows;
}

Model open(const ModelFlags& flags) {
  auto checkpoint = std::make_shared<const Checkpoint>(flags.folder);
  refuse_quantized(*checkpoint);
  return {
      std::move(checkpoint),
      {.dtype = parse_dtype(flags.open.dtype), .treat_as_tied = flags.open.treat_as_tied, .quantized = {}}};
}

std::vector<std::string> problems_of(const ProbedLayer& layer, size_t index) {
  std::vector<std::string> lines;
  const std::string where = str("layer ", index, ": ");
  for (const InputMismatch& m : layer.mismatches)
    lines.push_back(
        str(where, m.module, " does not read the input of ", m.leader, " (", m.group, "): ", m.reason));
  for (const auto& [a, b] : layer.undeclared)
    lines.push_back(str(where, a, " and ", b, " read one input, which no tag says"));
  for (const std::string& name : layer.missing) lines.push_back(where + name + " is not there");
  for (const std::string& name : layer.unlisted)
    lines.push_back(where + name + " is not among the tree's quantized modules");
  for (const std::string& key : layer.uncalled) lines.push_back(where + key + " was never called");
  return lines;
}

void run(const Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  const Model model = open(flags.model);
  std::vector<TokenRow> rows = spread_rows(model.spec().vocab);
  if (!flags.text.empty()) {
    rows =
        load_rows(flags.text, {.sequence_length = 32, .samples_default = kTextRows}, flags.model.folder, log)
            .rows;
    refuse_foreign_ids(rows, model.spec().vocab, flags.text);
  }
  LayerTree tree = model.family().tree;
  if (!flags.tree.empty()) tree = LayerTree::parse(parse_json(read_text(flags.tree), flags.tree), flags.tree);
  const std::vector<ProbedLayer> layers =
      probe_sharing(model, tree, rows, {.all_experts = flags.experts == "all"});

  Json json;
  json["model"] = flags.model.folder;
  json["model_type"] = model.family().model_type;
  json["shares_inputs"] = model.family().shares_inputs({model.checkpoint().config(), "config.json"});
  json["layers"] = Json::array();
  std::vector<std::string> problems;
  bool has_errors = false, fully_verified = true;
  size_t groups = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    json["layers"].push_back(to_json(layers[i]));
    for (std::string& line : problems_of(layers[i], i)) problems.push_back(std::move(line));
    has_errors |= layers[i].has_errors();
    fully_verified &= layers[i].fully_verified();
    groups += layers[i].verified.size();
  }
  json["has_errors"] = has_errors;
  json["fully_verified"] = fully_verified;
  json["ok"] = fully_verified;
  if (!fully_verified) {
    common.result(json, "");
    throw Error(ErrorKind::unsound, flags.model.folder,
                str(has_errors ? "the module tree does not say what the forward does"
                               : "the forward does not verify all of the module tree",
                    ", ", problems.size(), " problem(s):", below(problems)));
  }
  common.result(json,
                str(flags.model.folder, ": ", layers.size(), " layers of ", model.family().model_type, ", ",
                    groups, " groups of modules verified",
                    json.at("shares_inputs") ? "" : "; the type is not listed, so nothing is shared", "\n"));
}

}  // namespace

void add_probe(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand(
      "probe", "Hold the module tree of a model against a forward: which linear layers read one input");
  add_model_flags(verb, flags->model);
  verb.add_option("--text", flags->text,
                  "Text to run instead of token ids of all kinds: .txt, .jsonl or .safetensors");
  verb.add_option("--tree", flags->tree, "A module tree to try instead of the family's: .json");
  verb.add_option("--experts", flags->experts,
                  "What the experts of a mixture read: all = every token, routed = those sent to them, so "
                  "that some may not "
                  "be verified")
      ->check(CLI::IsMember({"all", "routed"}))
      ->capture_default_str();
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
