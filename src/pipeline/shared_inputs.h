// Which linear layers of a job have one sum: those that the family's module tree tags, that its forward hands one input, and
// that are elected among the modules to be solved. Decided before any batch runs (docs/sharing.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "models/model.h"
#include "models/sharing/election.h"
#include "pipeline/plan.h"

namespace gramian {

// How it is decided.
struct SharingOptions {
  bool enabled = true;
  // Modules that stay as they are have a sum too: for a file of statistics.
  bool all_modules = false;
};

// Of one layer. Names are its own, without "model.layers.3.".
struct LayerSharing {
  Blocks blocks;
  Election election;
  // Groups of which the forward does not hand all members one input, {"group", "modules"}: each is summed alone.
  nlohmann::ordered_json contradictions = nlohmann::ordered_json::array();

  // What telemetry says of each block with followers (docs/telemetry.md), when `adopted` of all have got their leader's
  // statistic; `cumulative` adoptions came before, and those of the layer are added to it.
  std::vector<nlohmann::ordered_json> events(size_t layer, const std::set<std::string>& adopted,
                                             int64_t& cumulative) const;
};

// `pauses`: the layer's modules, those of one entry read one input. Without `explicit_tags` nobody shares; `takes_sum` says who
// stands for election. Pure.
LayerSharing share_layer(const LayerTree& tree, const ModuleTree& pauses, bool explicit_tags,
                         const std::function<const Linear*(const std::string& name)>& takes_sum);

class SharedInputs {
 public:
  // Nothing is shared unless it is enabled and the model's own type is verified. Warns of contradictions.
  SharedInputs(const Model& model, const QuantizePlan& plan, const SharingOptions& options, Log& log);
  // For a foreign forward: modules of one pause share, which a probe has found to read the very same tensors.
  SharedInputs(const Subject& subject, const QuantizePlan& plan, const SharingOptions& options);

  // Modules of one pause that have a sum, by whose it is: the first of each leads.
  std::vector<std::vector<Linear*>> sums(const std::vector<Linear*>& pause) const;
  const LayerSharing& layer(size_t index) const { return layers_[index]; }
  // Sums that need not be made.
  int64_t followers() const;
  // {"enabled", "verified", "planned", "contradictions"} for the report.
  nlohmann::ordered_json to_json() const;

 private:
  bool enabled_, verified_;
  std::vector<LayerSharing> layers_;
  std::map<std::string, std::string> leader_of_;  // full names; a leader is its own
};

}  // namespace gramian
