// Any bytes as the two files of an adapter's folder (adapter_config.json, ended by a NUL, and weights): refused with gramian::Error, or
// pairs of matrices of one rank.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "formats/lora_adapter.h"
#include "input_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const gramian::fuzz::InputFolder folder;
  const auto parts = gramian::fuzz::parts_of(data, size, 2);
  folder.put("adapter_config.json", parts[0]);
  folder.put("adapter_model.safetensors", parts[1]);
  try {
    const gramian::LoraAdapter adapter = gramian::read_lora_adapter(folder.path());
    if (adapter.modules.empty()) std::abort();
    for (const auto& [name, pair] : adapter.modules) {
      if (pair.a.size(0) != pair.b.size(1) || !(pair.scale > 0)) std::abort();
    }
  } catch (const gramian::Error& error) {
    if (error.kind() == gramian::ErrorKind::internal || error.kind() == gramian::ErrorKind::io) std::abort();
  }
  return 0;
}
