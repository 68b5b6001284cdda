// Any bytes as the module tree of a layer: refused with gramian::Error, or blocks of modules that it knows.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "formats/json.h"
#include "models/sharing/layer_tree.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const gramian::LayerTree tree =
        gramian::LayerTree::parse(gramian::parse_json(text, "tree.json"), "tree.json");
    for (const auto& block : tree.blocks(3)) {
      for (const std::string& module : block) {
        if (tree.find(module) == nullptr) std::abort();
      }
      (void)tree.blocks_of(block);
    }
  } catch (const gramian::Error& error) {
    const gramian::ErrorKind kind = error.kind();
    if (kind != gramian::ErrorKind::corrupt_data && kind != gramian::ErrorKind::invalid_argument)
      std::abort();
  }
  return 0;
}
