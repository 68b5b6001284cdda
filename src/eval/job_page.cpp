#include "eval/job_page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/format.h"
#include "eval/html_template.h"
#include "eval/job_sections.h"
#include "eval/page_parts.h"
#include "eval/report_page.h"
#include "pipeline/held_out.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kWorst = 10;
constexpr size_t kNamed = 8;  // of a list, before "and N more"

std::string sentence(const JobDocument& document) {
  const std::string what = method_title(document.method);
  const std::string on = document.tokens > 0 ? ", calibrated on " + counted(document.tokens, "token") : "";
  if (document.finished)
    return str(what, on, ": ", counted(static_cast<int64_t>(document.modules.size()), "linear layer"),
               " quantized", document.format.empty() ? "." : ", stored as " + document.format + ".");
  const std::string of = document.layers > 0 ? str(" of ", document.layers) : "";
  return str(what, on, ". Not finished: ", document.finished_layers, of,
             " layers are done; the same command goes on there.");
}

Json keys_view(const JobDocument& document) {
  Json entries = Json::array();
  const auto add = [&](const char* title, const std::string& value, const std::string& note) {
    entries.push_back({{"title", title}, {"value", value}, {"note", note}});
  };
  if (document.weight_bytes)
    add("Size", human_bytes(*document.weight_bytes),
        document.bits_per_weight_total ? fixed(*document.bits_per_weight_total, 2) + " bits per weight in all"
                                       : "");
  if (document.bits_per_weight)
    add("Quantized layers", fixed(*document.bits_per_weight, 3), "bits per weight, scales included");
  add("Time", short_seconds(document.seconds) + "\u202fs",
      document.planned_seconds ? short_seconds(*document.planned_seconds) + "\u202fs foretold" : "");
  if (document.peak_rss_bytes > 0)
    add("Peak memory", human_bytes(document.peak_rss_bytes),
        document.planned_bytes ? human_bytes(*document.planned_bytes) + " foretold" : "");
  if (const auto& evaluation = document.evaluation) {
    add("Perplexity", fixed(evaluation->perplexity, std::min(decimals_of(evaluation->perplexity, 5), 6)),
        counted(evaluation->tokens, "predicted token"));
    if (evaluation->kl)
      add("KL to the original", fixed(*evaluation->kl, std::min(decimals_of(*evaluation->kl, 3), 6)),
          evaluation->kl_ci95 ? str(fixed(evaluation->kl_ci95->first, 5), " to ",
                                    fixed(evaluation->kl_ci95->second, 5), ", nats per token")
                              : std::string("nats per token"));
  }
  return {{"label", "Key figures of the job"}, {"entries", std::move(entries)}};
}

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kNamed ? str(text, " and ", names.size() - kNamed, " more") : text;
}

Json notes_view(const JobDocument& document) {
  Json lines = Json::array();
  std::vector<std::string> fallbacks, dead, damped, zero;
  int64_t columns = 0;
  for (const JobModule& module : document.modules) {
    const std::string& name = module.module.name;
    if (!module.fallback.empty()) fallbacks.push_back(name);
    if (module.dead_columns > 0) dead.push_back(name);
    if (module.damp_attempts > 1) damped.push_back(name);
    if (module.zero_groups > 0) zero.push_back(name);
    columns += module.dead_columns;
  }
  const auto add = [&](const std::vector<std::string>& names, const std::string& what) {
    if (!names.empty())
      lines.push_back(
          str(counted(static_cast<int64_t>(names.size()), "module"), " ", what, ": ", some_of(names), "."));
  };
  add(fallbacks, "rounded plainly, without the help of a Hessian");
  add(damped, "whose Hessian had to be damped more than once");
  add(dead, str("with input columns that were 0 in every calibration token, ", grouped(columns),
                " columns in all"));
  add(zero, "with groups of weights that are all 0");
  if (!document.starved_experts.empty())
    lines.push_back(str(counted(static_cast<int64_t>(document.starved_experts.size()), "expert"),
                        " saw fewer tokens than asked for: ", some_of(document.starved_experts), "."));
  if (!document.skipped.empty())
    lines.push_back(str(counted(static_cast<int64_t>(document.skipped.size()), "linear layer"),
                        " left as they were: ", some_of(document.skipped), "."));
  if (document.adopted > 0)
    lines.push_back(str(counted(document.adopted, "linear layer"),
                        " took the Hessian of another that reads the same input; ",
                        counted(document.sums, "Hessian"), " taken."));
  if (document.resumed_at > 0)
    lines.push_back(str("The job had stopped and went on at layer ", document.resumed_at, "."));
  if (lines.empty()) return nullptr;
  return {{"lines", std::move(lines)}};
}

Json worst_view(const JobDocument& document) {
  std::vector<const JobModule*> modules;
  for (const JobModule& module : document.modules) {
    if (module.module.relative_error) modules.push_back(&module);
  }
  std::stable_sort(modules.begin(), modules.end(), [](const JobModule* a, const JobModule* b) {
    return *a->module.relative_error > *b->module.relative_error;
  });
  modules.resize(std::min(modules.size(), kWorst));
  if (modules.empty()) return nullptr;
  Json views = Json::array();
  for (const JobModule* one : modules) {
    const ReportModule& module = one->module;
    const double error = *module.relative_error;
    views.push_back(
        {{"name", module.name},
         {"shape",
          module.out_features > 0 ? str(module.out_features, " out, ", module.in_features, " in") : ""},
         {"error", figure(error, percent(error, decimals_of(100 * error, 3)))},
         {"tokens", one->tokens ? figure(static_cast<double>(*one->tokens), grouped(*one->tokens)) : Json()},
         {"advice", advice_for(*one)}});
  }
  return {{"modules", std::move(views)}};
}

Json memory_view(const JobDocument& document) {
  const auto& points = document.memory;
  if (points.size() < 2) return nullptr;
  const double begin = points.front().seconds;
  double end = begin, peak = 0;
  for (const MemoryPoint& point : points) {
    end = std::max(end, point.seconds);
    peak = std::max(peak, point.bytes);
  }
  if (peak <= 0 || end <= begin) return nullptr;
  std::string line;
  for (const MemoryPoint& point : points)
    line +=
        str(line.empty() ? "" : " ", fixed(1000 * std::max(point.seconds - begin, 0.0) / (end - begin), 1),
            ",", fixed(158 - 154 * point.bytes / peak, 1));
  return {{"points", line},
          {"peak", human_bytes(peak)},
          {"described",
           str("Resident memory over ", short_seconds(end - begin), " seconds, at most ", human_bytes(peak))},
          {"begin", "first layer"},
          {"end", short_seconds(end - begin) + "\u202fs later"}};
}

Json facts_view(const JobDocument& document) {
  Json facts = Json::array();
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) facts.push_back({{"name", name}, {"value", value}});
  };
  add("Gramian", document.gramian);
  add("Method", method_title(document.method));
  add("Format", document.format);
  add("Kernels", document.cpu_level);
  add("Calibration", document.tokens > 0 ? counted(document.tokens, "token") : "none");
  return facts;
}

}  // namespace

std::string advice_for(const JobModule& module) {
  const int64_t columns = module.module.in_features;
  if (!module.fallback.empty())
    return "Rounded plainly: " + module.fallback + ". More calibration rows give it a Hessian.";
  if (module.tokens && columns > 0 && *module.tokens < columns)
    return str("Fewer tokens than its ", grouped(columns), " input columns: more calibration rows.");
  if (module.damp_attempts > 1)
    return "Its Hessian is nearly singular: more, or more varied, calibration rows.";
  if (module.group_size == -1 && module.bits > 0 && module.bits <= 4)
    return "One scale for a whole row: smaller groups, or more bits by a recipe's rule.";
  if (module.diagonal_spread && *module.diagonal_spread > kOutlierSpread)
    return "Few input columns dominate: gramian smooth or rotate first, or --order activation.";
  if (columns > 0 && module.dead_columns * 20 > columns)
    return "Many input columns are 0 in this text: calibrate on text like that of its use.";
  return "Nothing unusual about its input: more bits or smaller groups by a recipe's rule.";
}

std::string job_page(const JobDocument& document, const std::string& where) {
  std::vector<ReportModule> modules;
  for (const JobModule& module : document.modules) modules.push_back(module.module);
  const std::string name = document.name.empty() ? document.method : document.name;
  const Json view{
      {"gramian", document.gramian},
      {"model", name},
      {"date", ""},
      {"date_iso", ""},
      {"sentence", sentence(document)},
      {"keys", keys_view(document)},
      {"story", stories_view(document.stories)},
      {"positions", positions_view(document.evaluation)},
      {"results", nullptr},
      {"notes", notes_view(document)},
      {"proof", proof_view(document)},
      {"heat", heat_view({{name, modules}}, where)},
      {"worst", worst_view(document)},
      {"coverage", coverage_view(document)},
      {"time", time_view({{name, document.stages, document.seconds}})},
      {"memory_line", memory_view(document)},
      {"commands",
       commands_view(document.command.empty() ? std::vector<std::string>{} : std::vector{document.command})},
      {"facts", facts_view(document)},
  };
  return filled_page(view);
}

}  // namespace gramian
