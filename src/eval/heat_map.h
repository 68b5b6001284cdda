// The error of each module as a table of layers by kinds, with a colour step for each value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/report_document.h"

namespace gramian {

struct HeatMap {
  std::vector<std::string> layers;  // rows: the first number in a module's name, in order of appearance
  std::vector<std::string> kinds;   // columns: what follows it ("self_attn.q_proj"), likewise
  // [layers · kinds], row by row; null where the model has no such module.
  std::vector<const ReportModule*> cells;
};

// A module without a number in its name stands in layer "". Points into `modules`. Throws corrupt_data naming `where` for two
// modules of one name, and for names that do not form a table (more than 100,000 cells).
HeatMap heat_map(const std::vector<ReportModule>& modules, const std::string& where);

// "q" for "self_attn.q_proj": the last part without "_proj".
std::string short_kind(const std::string& kind);

// Steps of equal ratio from the smallest to the largest error above 0: errors of 0.5 % and 5 % differ in colour as 5 % and
// 50 % do.
class HeatScale {
 public:
  static constexpr int kSteps = 8;
  explicit HeatScale(const std::vector<HeatMap>& maps);
  // 0 .. kSteps - 1.
  int step(double error) const;
  // Where step `index` begins; index kSteps: where the last one ends. 0 when no error is above 0.
  double bound(int index) const;

 private:
  std::optional<double> low_;
  double ratio_ = 1;  // of neighbouring bounds
};

}  // namespace gramian
