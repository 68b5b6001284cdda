// gramian compare A B --reference R --text F | --rows F
#include "base/error.h"
#include "cli/common.h"
#include "cli/reference.h"
#include "eval/evaluate.h"

namespace gramian::cli {
namespace {

struct Flags {
  ModelFlags model;
  std::string second;
  ReferenceFlags reference;
  int64_t batch = 8;
  EvaluationFlags evaluation;
};

// One score of the rows of both models.
struct Paired {
  const char* name;
  double (*of)(const RowScore& row);
};
constexpr Paired kScores[] = {
    {"kl", [](const RowScore& row) { return row.kl / static_cast<double>(row.positions); }},
    {"negative_log_likelihood",
     [](const RowScore& row) { return row.negative_log_likelihood / static_cast<double>(row.positions); }},
    {"top1_agreement",
     [](const RowScore& row) {
       return static_cast<double>(row.agreed) / static_cast<double>(row.positions);
     }},
};

Json difference(const Paired& score, const std::vector<EvalResult>& both) {
  std::vector<double> first, second, differences, weights;
  for (size_t i = 0; i < both[0].rows.size(); ++i) {
    first.push_back(score.of(both[0].rows[i]));
    second.push_back(score.of(both[1].rows[i]));
    differences.push_back(first.back() - second.back());
    weights.push_back(static_cast<double>(both[0].rows[i].positions));
  }
  const Interval student = mean_with_ci95(differences, weights),
                 bootstrap = bootstrap_ci95(differences, weights);
  return {{"a", mean_with_ci95(first, weights).mean},
          {"b", mean_with_ci95(second, weights).mean},
          {"difference", student.mean},
          {"ci95", interval(student.low, student.high)},
          {"bootstrap95", interval(bootstrap.low, bootstrap.high)}};
}

std::string verdict(const Json& kl) {
  if (kl.at("ci95")[0].is_null()) return "one row says nothing about the difference";
  if (kl.at("ci95")[0] > 0) return "B is nearer to the reference";
  if (kl.at("ci95")[1] < 0) return "A is nearer to the reference";
  return "these rows do not tell them apart";
}

void run(const Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  check_reference(flags.reference, flags.evaluation.source());
  const RowSet rows = flags.evaluation.load("compare", "comparison", flags.model.folder, log);
  ResidentModel a(flags.model.folder, flags.model.open, pool), b(flags.second, flags.model.open, pool);
  const auto reference = open_reference(flags.reference, flags.model.open, rows.rows, pool, log);
  refuse_foreign_ids(rows.rows, a.model().spec().vocab, flags.evaluation.source());
  const std::vector<EvalResult> both = evaluate_all(
      {&a, &b}, reference->resident(), rows.rows,
      {.batch = flags.batch, .kept = reference->states(), .context = flags.evaluation.context()}, log);

  Json json;
  json["a"] = flags.model.folder;
  json["b"] = flags.second;
  json["reference"] = flags.reference.folder;
  json["dtype"] = c10::toString(a.model().dtype());
  json["protocol"] = flags.evaluation.protocol.empty() ? Json(nullptr) : Json(flags.evaluation.protocol);
  json["rows"] = both[0].rows.size();
  json["tokens"] = both[0].tokens;
  std::vector<std::vector<std::string>> cells{{"", "A", "B", "A - B", "95 % interval", "bootstrap"}};
  const auto range = [](const Json& ends) {
    return ends[0].is_null() ? std::string("-") : str(fixed(ends[0], 5), " .. ", fixed(ends[1], 5));
  };
  for (const Paired& score : kScores) {
    const Json& pair = json[score.name] = difference(score, both);
    cells.push_back({score.name, fixed(pair.at("a"), 5), fixed(pair.at("b"), 5),
                     fixed(pair.at("difference"), 5), range(pair.at("ci95")), range(pair.at("bootstrap95"))});
  }
  json["verdict"] = verdict(json.at("kl"));
  json["seconds"] = both[0].seconds;
  common.result(json, table(cells) + json["verdict"].get<std::string>() + "\n");
}

}  // namespace

void add_compare(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand(
      "compare", "Two models on the same rows against one reference: paired differences with intervals");
  add_model_flags(verb, flags->model);
  verb.add_option("second", flags->second, "The other model folder")->required();
  add_reference_flags(verb, flags->reference, "Model folder that both are to be near to", true);
  add_evaluation_flags(verb, flags->evaluation);
  add_batch_flag(verb, flags->batch);
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
