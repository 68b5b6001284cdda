// gramian eval MODEL --text F | --rows F [--reference REF]
#include <cmath>

#include "base/error.h"
#include "base/resources.h"
#include "cli/common.h"
#include "cli/reference.h"
#include "eval/evaluate.h"

namespace gramian::cli {
namespace {

struct Flags {
  ModelFlags model;
  ReferenceFlags reference;
  int64_t batch = 8;
  bool per_row = false;
  int64_t window = 0, stride = 0;
  EvaluationFlags evaluation;
};

Json kl_tail(const KlTail& tail) {
  return {
      {"median", tail.median}, {"p90", tail.p90}, {"p99", tail.p99}, {"p99.9", tail.p999}, {"max", tail.max}};
}

Json per_row(const EvalResult& result) {
  Json rows = Json::array();
  for (const RowScore& row : result.rows) {
    const auto positions = static_cast<double>(row.positions);
    rows.push_back(
        {{"tokens", row.positions}, {"negative_log_likelihood", row.negative_log_likelihood / positions}});
    if (!result.kl) continue;
    rows.back()["kl_mean"] = row.kl / positions;
    rows.back()["top1_agreement"] = static_cast<double>(row.agreed) / positions;
  }
  return rows;
}

Json by_position(const EvalResult& result) {
  Json parts = Json::array();
  for (const PositionScore& part : result.by_position())
    parts.push_back({{"context", {part.low, part.high}},
                     {"tokens", part.positions},
                     {"negative_log_likelihood", part.negative_log_likelihood},
                     {"kl_mean", result.kl ? Json(part.kl) : Json(nullptr)}});
  return parts;
}

std::optional<SlidingWindow> window_of(const Flags& flags) {
  if (flags.window == 0) return std::nullopt;
  const int64_t stride = flags.stride > 0 ? flags.stride : flags.window / 2;
  if (stride >= flags.window) {
    throw Error(ErrorKind::invalid_argument, "--stride",
                str(stride, " is not shorter than --window ", flags.window,
                    ": the first token of a window would not be scored"),
                "give less than the window's length");
  }
  return SlidingWindow{flags.window, stride};
}

void run(const Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  check_reference(flags.reference, flags.evaluation.source());
  const std::optional<SlidingWindow> window = window_of(flags);
  const RowSet rows =
      flags.evaluation.load("eval", "evaluation", flags.model.folder, log, window.has_value());

  ResidentModel model(flags.model.folder, flags.model.open, pool);
  refuse_foreign_ids(rows.rows, model.model().spec().vocab, flags.evaluation.source());
  const auto reference = open_reference(flags.reference, flags.model.open, rows.rows, pool, log);
  const EvalResult result = evaluate(model, reference->resident(), rows.rows,
                                     {.batch = flags.batch,
                                      .kept = reference->states(),
                                      .window = window,
                                      .context = flags.evaluation.context()},
                                     log);

  Json json;
  json["model"] = flags.model.folder;
  json["dtype"] = c10::toString(model.model().dtype());
  json["perplexity"] = result.perplexity;
  json["kl_mean"] = result.kl ? Json(result.kl->mean) : Json(nullptr);
  json["kl_ci95"] = result.kl ? interval(result.kl->low, result.kl->high) : Json(nullptr);
  json["kl_tail"] = result.tail ? kl_tail(*result.tail) : Json(nullptr);
  json["top1_agreement"] = result.kl ? Json(result.top1_agreement) : Json(nullptr);
  json["window"] = window ? Json(window->length) : Json(nullptr);
  json["stride"] = window ? Json(window->stride) : Json(nullptr);
  json["by_position"] = by_position(result);
  if (flags.per_row) json["per_row"] = per_row(result);
  json["protocol"] = flags.evaluation.protocol.empty() ? Json(nullptr) : Json(flags.evaluation.protocol);
  json["rows"] = rows.rows.size();
  json["tokens"] = result.tokens;
  json["seconds"] = result.seconds;
  json["tokens_per_second"] = static_cast<double>(result.tokens) / result.seconds;
  json["peak_rss_bytes"] = peak_rss_bytes();
  std::string text = str(
      "perplexity ", fixed(result.perplexity, 4), " over ", result.tokens, " predicted tokens",
      window ? str(", windows of ", window->length, " that slide by ", window->stride) : std::string(), "\n");
  if (result.kl) {
    text += str("KL(reference || model) ", fixed(result.kl->mean, 5), " nats per token, ",
                std::isfinite(result.kl->low)
                    ? str("95 % interval ", fixed(result.kl->low, 5), " to ", fixed(result.kl->high, 5))
                    : std::string("one row says nothing about how far it spreads"),
                "\nhalf of all tokens stay below ", fixed(result.tail->median, 5), ", 99 % below ",
                fixed(result.tail->p99, 4), ", the largest is ", fixed(result.tail->max, 3),
                "\nsame best token ", fixed(100 * result.top1_agreement, 2), " %\n");
  }
  text += str(fixed(result.seconds, 1), " s, ", fixed(static_cast<double>(result.tokens) / result.seconds, 0),
              " tokens a second\n");
  common.result(json, text);
}

}  // namespace

void add_eval(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb =
      *app.add_subcommand("eval", "Perplexity of a model, and its KL divergence from a reference");
  add_model_flags(verb, flags->model);
  add_adapter_flag(verb, flags->model);
  add_reference_flags(verb, flags->reference, "Model folder to compare with", false);
  verb.add_flag("--per-row", flags->per_row, "List every row's mean scores in the document of --json");
  add_evaluation_flags(verb, flags->evaluation);
  CLI::Option* window =
      verb.add_option(
              "--window", flags->window,
              "Windows of this many tokens that slide over each row (a .txt is one row): every token is "
              "scored once, with what is before it in its window")
          ->check(CLI::Range(2, 1 << 24))
          ->excludes("--sequence-length")
          ->excludes("--reference-states")
          ->excludes("--protocol");
  verb.add_option("--stride", flags->stride, "By how many tokens they slide (default: half a window)")
      ->check(CLI::Range(1, 1 << 24))
      ->needs(window);
  add_batch_flag(verb, flags->batch);
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
