// What a checkpoint's files say about themselves: whether everything that a reader needs is there, of the right type and
// shape, and holds values that can be used.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/parallel.h"
#include "formats/checkpoint.h"
#include "pipeline/plan.h"

namespace gramian {

struct VerifyOptions {
  // Also what a job copies unread from its source: the values of tensors that are not quantized, and the tokenizer.
  bool copies = true;
  // The linear layers, where it is not config.json's architecture that says them.
  std::optional<std::vector<Linear>> linears = std::nullopt;
};

struct Verification {
  std::vector<std::string> problems;   // one line each; empty: the checkpoint is sound
  std::optional<StoredFormat> stored;  // of a quantized checkpoint, as config.json says
  int64_t modules = 0;                 // quantized ones
  int64_t int8_saturated = 0;          // their runtime integers that leave int8 and are clamped
};

// Checks a plain or quantized checkpoint: the index; config.json and quantize_config.json with each other and with the tensors;
// every tensor that the architecture reads; every quantized module (formats/linear_format.h); that none is stored twice or excluded as
// well; with `options.copies` that other floating-point tensors are finite and tokenizer.json is a tokenizer. One module
// or tensor is in memory at a time. Throws unsupported for a model or a quantization that is not built.
Verification verify(const std::shared_ptr<const Checkpoint>& checkpoint, const VerifyOptions& options,
                    ThreadPool& pool, Log& log);

// Hard case 15: every tensor of `source` stands in `output` byte for byte or is replaced by the quantized set of a module
// of `plan`, and `output` holds nothing else. Returns what is not so, one line each.
std::vector<std::string> compare_with_source(const Checkpoint& output, const Checkpoint& source,
                                             const QuantizePlan& plan);

}  // namespace gramian
