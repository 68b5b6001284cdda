#include "eval/report_page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/format.h"
#include "eval/heat_map.h"
#include "eval/html_template.h"
#include "eval/report_document.h"
#include "eval/word_difference.h"

namespace gramian {

extern const std::string_view kReportPage;  // report_page.html

namespace {

using Json = nlohmann::ordered_json;

// After the point in a column; what is smaller gets an exponent.
constexpr int kDigitsMax = 6;

// A number as it is read, with its exact value beside it.
Json figure(double value, const std::string& text) {
  std::string exact = Json(value).dump();
  if (exact.ends_with(".0")) exact.resize(exact.size() - 2);
  return {{"value", exact}, {"text", text}};
}

// "12.34%", for attributes.
std::string part_of(double value, double whole) {
  return fixed(whole > 0 ? std::clamp(100 * value / whole, 0.0, 100.0) : 0.0, 2) + "%";
}

std::string percent(double share, int digits) { return fixed(100 * share, digits) + "\u202f%"; }

// "+0.2 %", with two significant digits where it is small; "×12.3" from ten times on.
std::string change_of(double value, double before) {
  if (before <= 0) return "";
  const double change = value / before - 1;
  if (change >= 9) return "\u00d7" + fixed_or_scientific(value / before, 1);
  const std::string text = percent(std::abs(change), std::clamp(decimals_of(100 * change, 2), 1, 4));
  return (change < 0 ? "\u2212" : "+") + text;
}

// In per cent, at most five characters; the exact value stands in the cell's title.
std::string short_percent(double share) {
  const double value = 100 * share;
  if (value > 0 && value < 0.005) return "<.01";
  if (value >= 9999.5) return ">9999";
  return fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string short_seconds(double seconds) {
  if (seconds >= 99.95) return grouped(std::llround(std::min(seconds, 1e15)));
  return fixed(seconds, seconds < 0.995 ? 2 : 1);
}

std::string counted(int64_t count, const std::string& noun) {
  return str(grouped(count), " ", noun, count == 1 ? "" : "s");
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
  const std::string& name = row.job->method;
  const std::string method = name == "rtn"    ? "plain rounding"
                             : name == "qqq"  ? "QQQ"
                             : name == "gptq" ? "GPTQ"
                                              : name;
  const int64_t group = row.job->group_size;
  return method + (group > 0 ? str(", groups of ", group) : ", one scale per row");
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
Json best_view(const ReportDocument& document) {
  const ReportRow& original = document.rows.front();
  const auto best = std::min_element(document.rows.begin() + 1, document.rows.end(),
                                     [](const auto& a, const auto& b) { return a.kl_mean < b.kl_mean; });
  if (best == document.rows.end() || best->bytes <= 0) return nullptr;
  const int digits = decimals_of(original.perplexity, 4);
  return {{"name", best->variant},
          {"ratio", fixed_or_scientific(original.bytes / best->bytes, 2) + "\u00d7 smaller"},
          {"sizes", human_bytes(best->bytes) + " after " + human_bytes(original.bytes)},
          {"change", change_of(best->perplexity, original.perplexity)},
          {"perplexities", fixed_or_scientific(best->perplexity, digits) + " after " +
                               fixed_or_scientific(original.perplexity, digits)},
          {"kl", fixed_or_scientific(best->kl_mean, std::min(decimals_of(best->kl_mean, 2), kDigitsMax))},
          {"agreement", percent(best->top1_agreement, 1)}};
}

Json pieces_view(const std::vector<TextPiece>& pieces) {
  Json view = Json::array();
  for (const TextPiece& piece : pieces)
    view.push_back(
        {{"same", piece.differs ? "" : piece.text}, {"different", piece.differs ? piece.text : ""}});
  return view;
}

Json story_view(const std::optional<ReportStory>& story) {
  if (!story) return nullptr;
  const auto [original, quantized] = word_difference(story->original, story->quantized);
  const auto differs = [](const TextPiece& piece) { return piece.differs; };
  const bool same = std::none_of(original.begin(), original.end(), differs) &&
                    std::none_of(quantized.begin(), quantized.end(), differs);
  return {
      {"prompt", story->prompt},
      {"variant", story->variant},
      {"outcome", same ? "Both models go on with the same words." : "Marked words are not shared by both."},
      {"original", pieces_view(original)},
      {"quantized", pieces_view(quantized)}};
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

Json cell_view(const ReportModule* module, const HeatScale& scale) {
  Json view{{"class", "none"}, {"title", ""}, {"error", nullptr}, {"absence", nullptr}};
  if (module == nullptr) {
    view["absence"] = "no such module";
    return view;
  }
  const std::string shape =
      str(module->name, ": ", module->out_features, " out, ", module->in_features, " in; ");
  if (!module->relative_error) {
    view["class"] = "unmeasured";
    view["absence"] = "not measured";
    view["title"] = shape + "relative error not measured";
    return view;
  }
  const double error = *module->relative_error;
  view["class"] = str("h", scale.step(error));
  view["title"] = shape + "relative error " + percent(error, decimals_of(100 * error, 4));
  view["error"] = figure(error, short_percent(error));
  return view;
}

Json map_view(const std::string& name, const HeatMap& map, const HeatScale& scale) {
  Json kinds = Json::array(), layers = Json::array();
  for (const std::string& kind : map.kinds) kinds.push_back({{"name", kind}, {"label", short_kind(kind)}});
  for (size_t row = 0; row < map.layers.size(); ++row) {
    Json cells = Json::array();
    for (size_t i = 0; i < map.kinds.size(); ++i)
      cells.push_back(cell_view(map.cells[row * map.kinds.size() + i], scale));
    layers.push_back(
        {{"layer", map.layers[row].empty() ? "\u2013" : map.layers[row]}, {"cells", std::move(cells)}});
  }
  return {{"name", name},
          {"kind_count", std::to_string(map.kinds.size())},
          {"kinds", std::move(kinds)},
          {"layers", std::move(layers)}};
}

Json legend_view(const HeatScale& scale) {
  Json steps = Json::array();
  for (int i = 0; i < HeatScale::kSteps; ++i)
    steps.push_back({{"class", str("h", i)}, {"begins", short_percent(scale.bound(i))}});
  return {{"steps", std::move(steps)},
          {"low", short_percent(scale.bound(0))},
          {"high", short_percent(scale.bound(HeatScale::kSteps))}};
}

// Maps of the jobs that measured anything, on one scale; null when none did.
Json heat_view(const ReportDocument& document, const std::string& where) {
  std::vector<HeatMap> maps;
  std::vector<std::string> names;
  int64_t unmeasured = 0;
  std::string largest;
  double error_max = -1;
  for (const ReportRow& row : document.rows) {
    if (!row.job) continue;
    const auto measured = [](const ReportModule& module) { return module.relative_error.has_value(); };
    const auto& modules = row.job->modules;
    if (std::none_of(modules.begin(), modules.end(), measured)) continue;
    names.push_back(row.variant);
    maps.push_back(heat_map(modules, where));
    for (const ReportModule& module : modules) {
      if (!module.relative_error) {
        ++unmeasured;
      } else if (*module.relative_error > error_max) {
        error_max = *module.relative_error;
        largest =
            str("Largest: ", short_percent(error_max), "\u202f%, ", module.name, " of ", row.variant, ".");
      }
    }
  }
  if (maps.empty()) return nullptr;
  const HeatScale scale(maps);
  Json views = Json::array();
  for (size_t i = 0; i < maps.size(); ++i) views.push_back(map_view(names[i], maps[i], scale));
  return {{"maps", std::move(views)},
          {"legend", scale.bound(0) > 0 ? legend_view(scale) : Json()},
          {"unmeasured", unmeasured > 0 ? "not measured" : ""},
          {"largest", largest}};
}

std::string stage_style(size_t stage) { return str("stage-", stage % 6); }

// One job's seconds in each of `stages`, and in none of them.
Json time_row_view(const std::string& name, const ReportJob& job, double seconds,
                   const std::vector<std::string>& stages, double seconds_max) {
  Json parts = Json::array(), cells = Json::array();
  double rest = seconds;
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto found = std::find_if(job.stages.begin(), job.stages.end(),
                                    [&](const auto& stage) { return stage.first == stages[i]; });
    Json cell{{"stage", stages[i]}, {"class", stage_style(i)}, {"figure", nullptr}};
    if (found != job.stages.end()) {
      rest -= found->second;
      parts.push_back({{"class", stage_style(i)}, {"width", part_of(found->second, seconds_max)}});
      cell["figure"] = figure(found->second, short_seconds(found->second));
    }
    cells.push_back(std::move(cell));
  }
  rest = std::max(rest, 0.0);
  parts.push_back({{"class", "stage-other"}, {"width", part_of(rest, seconds_max)}});
  cells.push_back(
      {{"stage", "other"}, {"class", "stage-other"}, {"figure", figure(rest, short_seconds(rest))}});
  return {{"name", name},
          {"parts", std::move(parts)},
          {"seconds", std::move(cells)},
          {"total", figure(seconds, short_seconds(seconds))}};
}

Json time_view(const ReportDocument& document) {
  std::set<std::string> names;
  double seconds_max = 0;
  for (const ReportRow& row : document.rows) {
    if (!row.job) continue;
    seconds_max = std::max(seconds_max, row.seconds);
    for (const auto& [stage, seconds] : row.job->stages) names.insert(stage);
  }
  const std::vector<std::string> stages(names.begin(), names.end());
  Json heads = Json::array(), jobs = Json::array();
  for (size_t i = 0; i < stages.size(); ++i)
    heads.push_back({{"name", stages[i]}, {"class", stage_style(i)}});
  heads.push_back({{"name", "other"}, {"class", "stage-other"}});
  for (const ReportRow& row : document.rows) {
    if (row.job) jobs.push_back(time_row_view(row.variant, *row.job, row.seconds, stages, seconds_max));
  }
  if (jobs.empty()) return nullptr;
  return {{"stages", std::move(heads)}, {"jobs", std::move(jobs)}};
}

// Word by word, so that lines break between them.
Json commands_view(const std::vector<std::string>& commands) {
  if (commands.empty()) return nullptr;
  Json lines = Json::array();
  for (const std::string& command : commands) {
    Json words = Json::array();
    std::istringstream text(command);
    for (std::string word; std::getline(text, word, ' ');) words.push_back(word);
    lines.push_back({{"words", std::move(words)}});
  }
  return {{"lines", std::move(lines)}};
}

}  // namespace

std::string_view page_beginning() { return kReportPage.substr(0, kReportPage.find("{{")); }

std::string report_page(const Json& given, const std::string& where) {
  // What is printed is what is shown: bytes that are no UTF-8 and numbers that are no JSON change in the same way.
  const Json json = Json::parse(given.dump(-1, ' ', false, Json::error_handler_t::replace));
  const ReportDocument document = read_report_document(json, where);
  const int64_t calibration = calibration_tokens(document);
  const Json view{
      {"gramian", document.gramian},
      {"libtorch", document.libtorch},
      {"model", document.model},
      {"cpu", document.cpu},
      {"cpu_level", document.cpu_level},
      {"threads", counted(document.threads, "thread")},
      {"date", readable_date(document.date)},
      {"date_iso", document.date},
      {"sentence", sentence(document)},
      {"held_out", counted(document.held_out_rows, "held-out row") + ", " +
                       counted(document.held_out_tokens, "predicted token")},
      {"calibration", calibration > 0 ? counted(calibration, "token") : "none"},
      {"best", best_view(document)},
      {"story", story_view(document.story)},
      {"rows", rows_view(document)},
      {"heat", heat_view(document, where)},
      {"time", time_view(document)},
      {"commands", commands_view(document.commands)},
  };
  return fill_template(kReportPage, view);
}

}  // namespace gramian
