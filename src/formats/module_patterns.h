// How configurations name modules: patterns and lists.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gramian {

// A PCRE2 pattern of module names, which must match from their start, but not to their end. Copies share the compiled pattern.
class ModulePattern {
 public:
  // Throws corrupt_data, naming `where`, for a pattern that does not compile.
  ModulePattern(const std::string& pattern, const std::string& where);
  // Throws corrupt_data when the match takes too many steps: patterns are not trusted.
  bool matches(const std::string& module) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

// A pattern that matches `name` alone.
std::string exact_pattern(const std::string& name);

// Few patterns that match `names` and no other of `all`: one for all layers and all neighbours that allow it. Where loaders
// make one matrix of several modules (fused_parts()), a pattern that has them all also matches the name of that matrix.
std::vector<std::string> patterns_of(const std::vector<std::string>& names,
                                     const std::vector<std::string>& all);

// What vLLM loads as one matrix: {"qkv_proj", {"q_proj", "k_proj", "v_proj"}} and others, of modules that have one parent.
struct FusedModule {
  const char* name;
  std::vector<const char*> parts;
};
const std::vector<FusedModule>& fused_modules();
// The matrix that a loader makes of `module` and others: "model.layers.3.self_attn.qkv_proj", in a mixture of one expert's modules;
// empty for one that stands alone.
std::string fused_matrix(const std::string& module);
// What it loads in one piece: that, or of a mixture all experts of the
// layer, "model.layers.3.mlp.experts"; empty for one that stands alone.
std::string fused_name(const std::string& module);

// Those of `modules` (full names) that a quantization_config leaves out: what a negative pattern of `dynamic` matches from its
// start, as GPT-QModel reads it, and what a list such as `modules_to_not_convert` or `ignore` names, whole, by some of its parts
// or by a pattern behind "re:".
// Throws corrupt_data, naming `where`, for a pattern that is none.
std::set<std::string> excluded_modules(const nlohmann::ordered_json& fields,
                                       const std::vector<std::string>& modules, const std::string& where);

}  // namespace gramian
