// Holds what a module tree says of shared inputs against a real forward: inputs are recorded at every pause and compared bit
// by bit. A model type may share inputs only when this finds its tree true.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "models/sharing/sharing_plan.h"

namespace gramian {

// The inputs of each module of a layer, in the order of its calls; a module that did not run has none.
using RecordedInputs = std::map<std::string, std::vector<at::Tensor>>;

struct InputMismatch {
  std::string group, leader, module;
  std::string reason;  // calls, shape, type, or values with their largest difference
};

struct ProbedLayer {
  std::vector<std::string> verified;  // keys of groups
  std::vector<InputMismatch> mismatches;
  // Modules of one parent and one block in different groups that read the same input all the same.
  std::vector<std::pair<std::string, std::string>> undeclared;
  std::vector<std::string> missing;   // in the plan, not in the layer
  std::vector<std::string> unlisted;  // in the layer, not in the plan
  std::vector<std::string> uncalled;  // keys of groups of which no member ran
  std::map<std::string, int64_t> calls;

  bool has_errors() const { return !mismatches.empty() || !undeclared.empty(); }
  bool fully_verified() const {
    return !has_errors() && missing.empty() && unlisted.empty() && uncalled.empty();
  }
};

// Of each group, the first member that ran is what the others are held to; a group of which the layer has no member is passed
// over. `inputs` has an entry for every module of the layer.
ProbedLayer compare_inputs(const SharingPlan& plan, const RecordedInputs& inputs);

struct SharingProbeOptions {
  // Each expert reads every token, so that all are called; the layer's output is routed all the same.
  bool all_experts = true;
};

// Runs `rows` as one batch through all layers; names are the layers' own. Throws as Model does.
std::vector<ProbedLayer> probe_sharing(const Model& model, const LayerTree& tree,
                                       const std::vector<TokenRow>& rows, const SharingProbeOptions& options);

nlohmann::ordered_json to_json(const ProbedLayer& layer);

}  // namespace gramian
