#include "runtime/stop_text.h"

#include <algorithm>
#include <utility>

namespace gramian {

std::string StopText::push(std::string_view part) {
  if (stopped_) return "";
  held_ += part;
  size_t begin = std::string::npos, end = std::string::npos;  // of the stop text
  for (const std::string& stop : stops_) {
    const size_t found = held_.find(stop);
    if (found == std::string::npos || std::pair(found + stop.size(), found) >= std::pair(end, begin))
      continue;
    begin = found;
    end = found + stop.size();
  }
  stopped_ = begin != std::string::npos;
  if (!stopped_) begin = first_doubt();
  std::string text = held_.substr(0, begin);
  held_.erase(0, begin);
  return text;
}

// The first place from where all the rest is the beginning of a stop text.
size_t StopText::first_doubt() const {
  size_t at = 0;
  const auto begins = [&](const std::string& stop) {
    return stop.starts_with(std::string_view(held_).substr(at));
  };
  while (at < held_.size() && std::none_of(stops_.begin(), stops_.end(), begins)) ++at;
  return at;
}

std::string StopText::finish() { return stopped_ ? "" : std::exchange(held_, ""); }

}  // namespace gramian
