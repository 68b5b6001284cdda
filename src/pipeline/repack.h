// A quantized checkpoint in another form, from its own tensors alone: decoded weights, or the same codes as another format stores
// them. Nothing is solved again.
#pragma once

#include <filesystem>
#include <string>

#include "base/log.h"
#include "formats/checkpoint.h"

namespace gramian {

struct RepackOptions {
  // "bf16", "fp16": plain weights, each rounded once. Otherwise a format's name: what a reader decodes is the same to the last bit,
  // or the module is refused by name.
  std::string to;
  bool force = false;  // replace an output that exists
};

struct Repacked {
  int64_t modules = 0;
  uint64_t weight_bytes = 0;
};

// Everything but the quantized modules is copied byte for byte. The folder appears when it is complete. Throws unsupported, naming
// every module that the format cannot hold; invalid_argument where the checkpoint is not quantized or is in this form already.
Repacked repack(const Checkpoint& source, const std::filesystem::path& output, const RepackOptions& options,
                Log& log);

}  // namespace gramian
