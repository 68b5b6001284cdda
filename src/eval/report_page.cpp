#include "eval/report_page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/format.h"
#include "eval/html_template.h"
#include "eval/page_parts.h"
#include "eval/report_document.h"

namespace gramian {

extern const std::string_view kReportPage;  // report_page.html

namespace {

using Json = nlohmann::ordered_json;

// After the point in a column; what is smaller gets an exponent.
constexpr int kDigitsMax = 6;

// "+0.2 %", with two significant digits where it is small; "×12.3" from ten times on.
std::string change_of(double value, double before) {
  if (before <= 0) return "";
  const double change = value / before - 1;
  if (change >= 9) return "\u00d7" + fixed_or_scientific(value / before, 1);
  const std::string text = percent(std::abs(change), std::clamp(decimals_of(100 * change, 2), 1, 4));
  return (change < 0 ? "\u2212" : "+") + text;
}

std::string readable_date(const std::string& iso) {
  constexpr const char* kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};
  const auto number = [&](size_t at, size_t count) { return std::stoi(iso.substr(at, count)); };
  return str(number(8, 2), " ", kMonths[number(5, 2) - 1], " ", number(0, 4), ", ", iso.substr(11, 5),
             " UTC");
}

std::string note_of(const ReportRow& row) {
  if (!row.job) return "not quantized";
  const int64_t group = row.job->group_size;
  return method_title(row.job->method) + (group > 0 ? str(", groups of ", group) : ", one scale per row");
}

int64_t calibration_tokens(const ReportDocument& document) {
  int64_t tokens = 0;
  for (const ReportRow& row : document.rows) tokens = std::max(tokens, row.job ? row.job->tokens : 0);
  return tokens;
}

std::string sentence(const ReportDocument& document) {
  const auto variants = static_cast<int64_t>(document.rows.size()) - 1;
  const int64_t calibration = calibration_tokens(document);
  return str("Quantized ",
             variants == 1   ? "once"
             : variants == 2 ? "in two ways"
             : variants == 3 ? "in three ways"
                             : str("in ", variants, " ways"),
             calibration > 0 ? str(", with ", counted(calibration, "token"), " of calibration text,") : "",
             " and compared with the original on ", counted(document.held_out_tokens, "held-out token"), ".");
}

// The variant with the least divergence, in four figures.
Json keys_view(const ReportDocument& document) {
  const ReportRow& original = document.rows.front();
  const auto best = std::min_element(document.rows.begin() + 1, document.rows.end(),
                                     [](const auto& a, const auto& b) { return a.kl_mean < b.kl_mean; });
  if (best == document.rows.end() || best->bytes <= 0) return nullptr;
  const int digits = decimals_of(original.perplexity, 4);
  Json entries = Json::array();
  const auto add = [&](const std::string& title, const std::string& value, const std::string& note) {
    entries.push_back({{"title", title}, {"value", value}, {"note", note}});
  };
  add(best->variant + " is", fixed_or_scientific(original.bytes / best->bytes, 2) + "\u00d7 smaller",
      human_bytes(best->bytes) + " after " + human_bytes(original.bytes));
  add("Perplexity", change_of(best->perplexity, original.perplexity),
      fixed_or_scientific(best->perplexity, digits) + " after " +
          fixed_or_scientific(original.perplexity, digits));
  add("KL to the original",
      fixed_or_scientific(best->kl_mean, std::min(decimals_of(best->kl_mean, 2), kDigitsMax)),
      "nats per token");
  add("Same best token", percent(best->top1_agreement, 1), "of all positions");
  return {{"label", str("Key figures of ", best->variant, ", the variant closest to the original")},
          {"entries", std::move(entries)}};
}

// The bar from 0 to the mean and the whiskers, on a scale that ends with the largest mean or interval.
Json divergence_view(const ReportRow& row, double scale, int digits) {
  Json view{{"mean_at", part_of(row.kl_mean, scale)},
            {"mean", figure(row.kl_mean, fixed_or_scientific(row.kl_mean, digits))},
            {"whiskers", nullptr}};
  if (row.kl_ci95) {
    const auto [low, high] = *row.kl_ci95;
    view["whiskers"] = {{"low_at", part_of(low, scale)},
                        {"high_at", part_of(high, scale)},
                        {"low", figure(low, fixed_or_scientific(low, digits))},
                        {"high", figure(high, fixed_or_scientific(high, digits))}};
  }
  return view;
}

Json rows_view(const ReportDocument& document) {
  const ReportRow& original = document.rows.front();
  double divergence_max = 0, memory_max = 0;
  // Every number of a column has the digits that its smallest one needs.
  int divergence_digits = 0, perplexity_digits = 0;
  for (const ReportRow& row : document.rows) {
    divergence_max = std::max({divergence_max, row.kl_mean, row.kl_ci95 ? row.kl_ci95->second : 0});
    memory_max = std::max(memory_max, row.peak_rss_bytes);
    divergence_digits = std::max(divergence_digits, std::min(decimals_of(row.kl_mean, 3), kDigitsMax));
    perplexity_digits = std::max(perplexity_digits, decimals_of(row.perplexity, 5));
  }
  Json view = Json::array();
  for (const ReportRow& row : document.rows) {
    const bool quantized = row.job.has_value();
    const bool sized = quantized && original.bytes > 0;
    view.push_back(
        {{"name", row.variant},
         {"note", note_of(row)},
         {"size", figure(row.bytes, human_bytes(row.bytes))},
         {"share", sized ? percent(row.bytes / original.bytes, 0) : ""},
         {"bits", figure(row.bits_per_weight, fixed_or_scientific(row.bits_per_weight, 3))},
         {"perplexity", figure(row.perplexity, fixed_or_scientific(row.perplexity, perplexity_digits))},
         {"change", quantized ? change_of(row.perplexity, original.perplexity) : ""},
         {"divergence", quantized ? divergence_view(row, divergence_max, divergence_digits) : Json()},
         {"agreement", quantized ? figure(row.top1_agreement, percent(row.top1_agreement, 1)) : Json()},
         {"seconds", quantized ? figure(row.seconds, short_seconds(row.seconds) + "\u202fs") : Json()},
         {"memory", figure(row.peak_rss_bytes, human_bytes(row.peak_rss_bytes))},
         {"memory_width", part_of(row.peak_rss_bytes, memory_max)}});
  }
  return view;
}

}  // namespace

std::string_view page_beginning() { return kReportPage.substr(0, kReportPage.find("{{")); }

std::string report_page(const Json& given, const std::string& where) {
  // What is printed is what is shown: bytes that are no UTF-8 and numbers that are no JSON change in the same way.
  const Json json = Json::parse(given.dump(-1, ' ', false, Json::error_handler_t::replace));
  const ReportDocument document = read_report_document(json, where);
  const int64_t calibration = calibration_tokens(document);
  std::vector<NamedModules> modules;
  std::vector<JobTime> times;
  for (const ReportRow& row : document.rows) {
    if (!row.job) continue;
    modules.emplace_back(row.variant, row.job->modules);
    times.push_back({row.variant, row.job->stages, row.seconds});
  }
  std::vector<ReportStory> stories;
  if (document.story) stories.push_back(*document.story);
  const std::string held_out = counted(document.held_out_rows, "held-out row") + ", " +
                               counted(document.held_out_tokens, "predicted token");
  const Json facts = Json::array(
      {{{"name", "Gramian"}, {"value", document.gramian}},
       {{"name", "LibTorch"}, {"value", document.libtorch}},
       {{"name", "Processor"},
        {"value", str(document.cpu, ", ", counted(document.threads, "thread"), ", kernels of level ",
                      document.cpu_level)}},
       {{"name", "Calibration"}, {"value", calibration > 0 ? counted(calibration, "token") : "none"}},
       {{"name", "Evaluation"}, {"value", held_out}}});
  const Json view{
      {"gramian", document.gramian},
      {"model", document.model},
      {"date", readable_date(document.date)},
      {"date_iso", document.date},
      {"sentence", sentence(document)},
      {"keys", keys_view(document)},
      {"story", stories_view(stories)},
      {"results", {{"rows", rows_view(document)}, {"held_out", held_out}}},
      {"notes", nullptr},
      {"proof", nullptr},
      {"heat", heat_view(modules, where)},
      {"worst", nullptr},
      {"coverage", nullptr},
      {"positions", nullptr},
      {"time", time_view(times)},
      {"memory_line", nullptr},
      {"commands", commands_view(document.commands)},
      {"facts", facts},
  };
  return filled_page(view);
}

std::string filled_page(const Json& view) { return fill_template(kReportPage, view); }

std::string method_title(const std::string& method) {
  return method == "rtn" ? "plain rounding" : method == "qqq" ? "QQQ" : method == "gptq" ? "GPTQ" : method;
}

}  // namespace gramian
