// What a job quantizes, however the model's forward is made: its weights, and its linear layers as the forward meets them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "models/linear.h"
#include "models/model.h"

namespace gramian {

struct Subject {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::string model_type;
  at::ScalarType dtype = at::kFloat;  // of the batches
  // Of each decoder layer: its linear layers in the order of the forward's pauses; their names, those of one pause in one entry;
  // and what the names begin with, "model.layers.3.".
  std::vector<std::vector<Linear>> layers;
  std::vector<ModuleTree> pauses;
  std::vector<std::string> prefixes;
  // Of a foreign forward, for each pause of a layer the number of its step. Pauses of one step are taken together: none reads
  // what another one's modules make. Empty: one pause a step.
  std::vector<std::vector<size_t>> steps;
  std::set<std::string>
      experts;  // modules that belong to one expert of a mixture; filled for foreign forwards only
  std::optional<Linear> head;
  bool tied = false;             // the head is the embedding
  bool tied_on_request = false;  // by the user's word alone
  // Whose forward runs: ours, which knows the architecture that config.json names, or another one.
  bool foreign = false;
};

// Of a model of ours. Throws what Model::survey() throws.
Subject subject_of(const Model& model);

}  // namespace gramian
