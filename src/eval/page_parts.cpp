#include "eval/page_parts.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/format.h"
#include "eval/heat_map.h"
#include "eval/word_difference.h"

namespace gramian {

using Json = nlohmann::ordered_json;

Json figure(double value, const std::string& text) {
  std::string exact = Json(value).dump();
  if (exact.ends_with(".0")) exact.resize(exact.size() - 2);
  return {{"value", exact}, {"text", text}};
}

std::string part_of(double value, double whole) {
  return fixed(whole > 0 ? std::clamp(100 * value / whole, 0.0, 100.0) : 0.0, 2) + "%";
}

std::string percent(double share, int digits) { return fixed(100 * share, digits) + "\u202f%"; }

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

namespace {

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

Json pieces_view(const std::vector<TextPiece>& pieces) {
  Json view = Json::array();
  for (const TextPiece& piece : pieces)
    view.push_back(
        {{"same", piece.differs ? "" : piece.text}, {"different", piece.differs ? piece.text : ""}});
  return view;
}

Json story_view(const ReportStory& story) {
  const auto [original, quantized] = word_difference(story.original, story.quantized);
  const auto differs = [](const TextPiece& piece) { return piece.differs; };
  const bool same = std::none_of(original.begin(), original.end(), differs) &&
                    std::none_of(quantized.begin(), quantized.end(), differs);
  return {
      {"prompt", story.prompt},
      {"variant", story.variant},
      {"outcome", same ? "Both models go on with the same words." : "Marked words are not shared by both."},
      {"original", pieces_view(original)},
      {"quantized", pieces_view(quantized)}};
}

std::string stage_style(size_t stage) { return str("stage-", stage % 6); }

// One job's seconds in each of `stages`, and in none of them.
Json time_row_view(const JobTime& job, const std::vector<std::string>& stages, double seconds_max) {
  Json parts = Json::array(), cells = Json::array();
  double rest = job.seconds;
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
  return {{"name", job.name},
          {"parts", std::move(parts)},
          {"seconds", std::move(cells)},
          {"total", figure(job.seconds, short_seconds(job.seconds))}};
}

}  // namespace

Json heat_view(const std::vector<NamedModules>& given, const std::string& where) {
  std::vector<HeatMap> maps;
  std::vector<std::string> names;
  int64_t unmeasured = 0;
  std::string largest;
  double error_max = -1;
  for (const auto& [name, modules] : given) {
    const auto measured = [](const ReportModule& module) { return module.relative_error.has_value(); };
    if (std::none_of(modules.begin(), modules.end(), measured)) continue;
    names.push_back(name);
    maps.push_back(heat_map(modules, where));
    for (const ReportModule& module : modules) {
      if (!module.relative_error) {
        ++unmeasured;
      } else if (*module.relative_error > error_max) {
        error_max = *module.relative_error;
        largest = str("Largest: ", short_percent(error_max), "\u202f%, ", module.name, " of ", name, ".");
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

Json stories_view(const std::vector<ReportStory>& stories) {
  Json pairs = Json::array();
  for (const ReportStory& story : stories) pairs.push_back(story_view(story));
  if (pairs.empty()) return nullptr;
  return {{"title", pairs.size() == 1 ? "One prompt, two continuations" : "Two continuations of each prompt"},
          {"pairs", std::move(pairs)}};
}

Json time_view(const std::vector<JobTime>& given) {
  std::set<std::string> names;
  double seconds_max = 0;
  for (const JobTime& job : given) {
    seconds_max = std::max(seconds_max, job.seconds);
    for (const auto& [stage, seconds] : job.stages) names.insert(stage);
  }
  const std::vector<std::string> stages(names.begin(), names.end());
  Json heads = Json::array(), jobs = Json::array();
  for (size_t i = 0; i < stages.size(); ++i)
    heads.push_back({{"name", stages[i]}, {"class", stage_style(i)}});
  heads.push_back({{"name", "other"}, {"class", "stage-other"}});
  for (const JobTime& job : given) jobs.push_back(time_row_view(job, stages, seconds_max));
  if (jobs.empty()) return nullptr;
  return {{"stages", std::move(heads)}, {"jobs", std::move(jobs)}};
}

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

}  // namespace gramian
