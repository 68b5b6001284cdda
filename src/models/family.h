// What a model family declares: how its config.json reads, how a layer is built of shared blocks, and which linear layers
// share an input. One file a family under families/, one line in families/registry.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/blocks.h"
#include "models/config.h"

namespace gramian {

struct DecoderSpec {
  int64_t hidden = 0;
  int64_t vocab = 0;
  double norm_eps = 1e-6;
  bool tied = false;                     // the head is the embedding
  std::vector<RopeSpec> ropes;           // rotary kinds, which the layers' attention chooses from
  std::vector<AttentionSpec> attention;  // one per layer
  MlpSpec mlp;
  int64_t layers() const { return static_cast<int64_t>(attention.size()); }
};

// Linear layers of one decoder layer in the order of the forward's pauses; those of one entry read the same input. Names
// are relative to the layer.
using ModuleTree = std::vector<std::vector<std::string>>;

struct Family {
  std::string model_type;    // config.json's "model_type"
  std::string architecture;  // config.json's "architectures"
  DecoderSpec (*describe)(const ConfigReader& config);
  std::unique_ptr<DecoderLayer> (*layer)(const DecoderSpec& spec, const Weights& weights,
                                         const std::string& prefix, int64_t index);
  ModuleTree modules;
};

// The family of a config.json, by model_type, else by architecture. Throws unsupported listing the known types.
const Family& find_family(const ConfigReader& config);
std::vector<const Family*> all_families();

// Shared by the dense pre-norm families: hidden sizes, heads, rotary settings and MLP under their usual keys.
DecoderSpec describe_dense(const ConfigReader& config);
// For families whose reference turns whole heads: partial_rotary_factor counts for nothing under plain rotary
// positions, and is refused (unsupported) under the scaled kinds, which the reference cannot run with it.
void turn_whole_heads(const ConfigReader& config, DecoderSpec& spec);
// One PreNormLayer from the spec.
std::unique_ptr<DecoderLayer> pre_norm_layer(const DecoderSpec& spec, const Weights& weights,
                                             const std::string& prefix, int64_t index);
// {q, k, v}, {o}, {gate, up}, {down}.
ModuleTree dense_modules();

}  // namespace gramian
