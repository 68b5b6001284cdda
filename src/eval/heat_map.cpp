#include "eval/heat_map.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "formats/json.h"

namespace gramian {
namespace {

struct Place {
  std::string layer, kind;
};

// "model.layers.3.self_attn.q_proj": layer 3, self_attn.q_proj.
Place place_of(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos && end + 1 < name.size())
      return {part, name.substr(end + 1)};
    begin = end + 1;
  }
  return {"", name};
}

// The places of texts in the order in which they appear.
class Names {
 public:
  size_t add(const std::string& name) {
    const auto [found, added] = places_.emplace(name, names.size());
    if (added) names.push_back(name);
    return found->second;
  }
  std::vector<std::string> names;

 private:
  std::map<std::string, size_t> places_;
};

}  // namespace

HeatMap heat_map(const std::vector<ReportModule>& modules, const std::string& where) {
  Names layers, kinds;
  std::vector<std::pair<size_t, size_t>> places;
  for (const ReportModule& module : modules) {
    const Place place = place_of(module.name);
    places.emplace_back(layers.add(place.layer), kinds.add(place.kind));
  }
  constexpr size_t kCellsMax = 100'000;
  if (!modules.empty() && layers.names.size() > kCellsMax / kinds.names.size()) {
    throw Error(ErrorKind::corrupt_data, where,
                str(modules.size(), " modules in ", layers.names.size(), " layers with ", kinds.names.size(),
                    " kinds, at most ", kCellsMax, " places"));
  }
  HeatMap map{.layers = layers.names, .kinds = kinds.names, .cells = {}};
  map.cells.resize(map.layers.size() * map.kinds.size(), nullptr);
  for (size_t i = 0; i < modules.size(); ++i) {
    const ReportModule*& cell = map.cells[places[i].first * map.kinds.size() + places[i].second];
    if (cell != nullptr)
      throw Error(ErrorKind::corrupt_data, where, "two modules named " + quote_name(modules[i].name));
    cell = &modules[i];
  }
  return map;
}

std::string short_kind(const std::string& kind) {
  std::string name = kind.substr(kind.rfind('.') + 1);
  if (name.size() > 5 && name.ends_with("_proj")) name.resize(name.size() - 5);
  return name;
}

HeatScale::HeatScale(const std::vector<HeatMap>& maps) {
  double high = 0;
  for (const HeatMap& map : maps) {
    for (const ReportModule* cell : map.cells) {
      if (cell == nullptr || !cell->relative_error) continue;
      const double error = *cell->relative_error;
      if (error > 0) low_ = std::min(low_.value_or(error), error);
      high = std::max(high, error);
    }
  }
  if (low_) ratio_ = std::pow(high / *low_, 1.0 / kSteps);
}

int HeatScale::step(double error) const {
  if (!low_ || error <= *low_ || ratio_ <= 1) return 0;
  return std::clamp(static_cast<int>(std::log(error / *low_) / std::log(ratio_)), 0, kSteps - 1);
}

double HeatScale::bound(int index) const { return low_.value_or(0) * std::pow(ratio_, index); }

}  // namespace gramian
