// Where an orthogonal matrix can be multiplied into a tensor between linear layers without a change of what the model computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/folds.h"
#include "models/model.h"

namespace gramian {

// The residual stream of one layer: what reads it through a norm (its weight then has to move into the readers), and the linear
// layers that write it. Names are relative to the layer.
struct ResidualPorts {
  std::vector<ChannelFold> norms;
  std::vector<std::string> writers;
};

// Why the stream between the layers cannot be turned; empty when it can. A norm that does more than divide by the root mean square,
// or one on what is written, sees single channels; so does whatever else reads or writes the stream.
std::string residual_obstacle(const Model& model);
ResidualPorts residual_ports(const DecoderSpec& spec, int64_t layer);

// v -> o, head by head, of softmax attention; no fold where it cannot be turned, and why then in `left_alone`.
LayerFolds head_turns(const DecoderSpec& spec, int64_t layer);

}  // namespace gramian
