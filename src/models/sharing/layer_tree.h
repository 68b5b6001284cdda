// The module tree of a decoder layer: which modules a family declares, in which blocks they are calibrated, and which of
// them read one input. Nothing about inputs is inferred: only a tag says that they are shared.
//
//   ["model", "layers", "#", {"self_attn": ["q_proj:0:in=x", "k_proj:0:in=x", "v_proj:0:in=x", "o_proj:1"],
//                             "mlp": {"gate": ["gate:!"], "experts": {"#": ["gate_proj:0:in=x", "up_proj:0:in=x", ...]}}}]
//
// The path to the layers, "#" for the layer's number, one mapping; or a list of such trees (variants). A value is a list of
// leaves or a mapping again. Keys and leaves are `name|alias...:flag:flag...`; aliases are names on disk only:
//
//   digits    number of the block inside the parent, 0 where there is none
//   !         takes part in the forward and is never quantized; on a key: nothing below it
//   ?         only its input is captured: never quantized; on a key it concerns the input of the block as a whole
//   in=TAG    reads the same input as its siblings with this tag, where siblings have the same immediate parent
//   others    roles for other methods, ignored: moe, norm, q, k, v, gate, up, down, routed, shared, NAME=VALUE
//
// Special keys: "#" every expert; "" the parent itself. A leaf that is "#", or is called like the last part of its parent,
// is the parent.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace gramian {

// Modules that are calibrated and quantized together, in order; names are relative to the layer.
using Blocks = std::vector<std::vector<std::string>>;

struct LeafSpec {
  int64_t digit = 0;
  std::string tag;  // empty: none
  bool quantize = true;
  bool operator==(const LeafSpec&) const = default;
};

class LayerTree {
 public:
  // Throws invalid_argument, naming `where` and the token or path: another form, an empty or second tag, a second digit, two
  // variants (or places of one) that give a module different leaf specs.
  static LayerTree parse(const nlohmann::ordered_json& tree, const std::string& where);

  // Blocks without what is never quantized, in the order of keys, then digits: leaves of one parent with one digit are a
  // block; siblings whose keys carry a digit have common blocks, numbered from that digit on; any other key has blocks of its
  // own. Experts stand projection by projection. A name counts once, at its first place; `excluded` names (may be empty) and
  // blocks without a name are left out.
  Blocks blocks(int64_t experts, const std::function<bool(const std::string& name)>& excluded = {}) const;

  // Blocks of a layer that has the modules `names`, which may be aliases, and no others.
  Blocks blocks_of(const std::vector<std::string>& names) const;

  // The spec of a module, by name or alias: under its own name, else with its experts' numbers as "#". Null for an unknown
  // one.
  const LeafSpec* find(const std::string& name) const;

  // Of every leaf, under its path with "#" for an expert's number.
  const std::map<std::string, LeafSpec>& leaves() const noexcept { return leaves_; }

 private:
  // Path of the leaf that is called `name`; empty: none.
  std::string path_of(const std::string& name) const;
  Blocks templates_;  // with "#" for an expert's number
  std::map<std::string, LeafSpec> leaves_;
  std::map<std::string, std::string> paths_;  // of leaves, by every spelling
};

}  // namespace gramian
