// A model's values as a plain Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/log.h"
#include "formats/checkpoint.h"

namespace gramian {

// Every tensor decoded and rounded once to `dtype` (bf16 or f16), integers as they are; config.json says so, and what else belongs to
// the model lies beside it. The folder appears when it is complete. Returns the bytes of the weights. Throws numerical, naming the
// tensor, for values that leave the type; invalid_argument for an output that exists, unless `force`.
uint64_t write_plain(const Checkpoint& source, const std::filesystem::path& output, DType dtype, bool force,
                     Log& log);

}  // namespace gramian
