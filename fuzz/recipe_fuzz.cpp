// Any bytes as a recipe, in YAML and in JSON: refused with gramian::Error, or rules that can be asked for a module's settings.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "pipeline/recipe.h"

namespace {

void read(const std::string& text, const char* where) {
  try {
    const gramian::Recipe recipe = gramian::parse_recipe(text, where);
    recipe.problems.refuse();
    for (const char* name : {"model.layers.0.self_attn.q_proj", "lm_head"}) {
      const gramian::ModuleRule* rule = gramian::rule_of(recipe.rules, name);
      const gramian::ModuleSettings settings = gramian::patched({}, recipe.defaults);
      if (rule == nullptr) continue;
      const int bits = gramian::patched(settings, rule->patch).solve.grid.bits;
      if (bits < 2 || bits > 8) std::abort();
    }
  } catch (const gramian::Error& error) {
    if (error.exit_code() != 2) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read(text, "recipe.yaml");
  read(text, "recipe.json");
  return 0;
}
