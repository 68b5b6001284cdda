// What the pages of reports have in common: numbers as they are shown, and views of the template's sections (report_page.html).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "eval/report_document.h"

namespace gramian {

// A number as it is read, with its exact value beside it.
nlohmann::ordered_json figure(double value, const std::string& text);
// "12.34%", for attributes.
std::string part_of(double value, double whole);
std::string percent(double share, int digits);
// In per cent, at most five characters; the exact value stands in the cell's title.
std::string short_percent(double share);
std::string short_seconds(double seconds);
// "1 row", "1,024 rows".
std::string counted(int64_t count, const std::string& noun);

// Modules under the name of what they belong to.
using NamedModules = std::pair<std::string, std::vector<ReportModule>>;
// One map for each that has a measured error, on one scale; null when none has. `where` is for messages.
nlohmann::ordered_json heat_view(const std::vector<NamedModules>& given, const std::string& where);

// Prompts with two continuations each, what they do not share marked; null without any.
nlohmann::ordered_json stories_view(const std::vector<ReportStory>& stories);

// A job's seconds, by stage and in all.
struct JobTime {
  std::string name;
  std::vector<std::pair<std::string, double>> stages;
  double seconds = 0;
};
// Null without jobs.
nlohmann::ordered_json time_view(const std::vector<JobTime>& given);
// Word by word, so that lines break between them; null without commands.
nlohmann::ordered_json commands_view(const std::vector<std::string>& commands);

}  // namespace gramian
