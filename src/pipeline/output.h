// The output of a job in the making: under its final name only when it is complete. A folder of safetensors (output_folder.h) or one
// GGUF file (output_gguf.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "formats/checkpoint.h"
#include "formats/linear_format.h"
#include "pipeline/plan.h"

namespace gramian {

struct Prepared;     // pipeline/preflight.h
struct QuantizeJob;  // pipeline/quantize.h

class Output {
 public:
  virtual ~Output() = default;
  // Copies what the plan does not replace: `begun` is false, or takes it as it is there.
  virtual void copy(bool begun) = 0;
  // Digests of the tensors written, by their names.
  virtual std::map<std::string, std::string> write(const PlannedModule& module, const PackedParts& parts) = 0;
  // Takes the tensors of a finished part of the job; false, and nothing taken, when their digests are not these.
  virtual bool keep(const std::map<std::string, std::string>& digests) = 0;
  virtual PackedParts read(const PlannedModule& module) const = 0;
  // What was written survives a crash from here on.
  virtual void sync() = 0;
  // All tensors are there: what is in staged() becomes a complete model. `tied`: its configuration is to say that the head is, or is
  // not, the embedding, where the source's does not.
  virtual void finish(const QuantizationFields& quantization, const std::optional<bool>& tied) = 0;
  virtual const std::filesystem::path& staged() const noexcept = 0;
  // What `written`, the model in staged(), does not hold as the plan says.
  virtual std::vector<std::string> differences(const Checkpoint& written) const = 0;
  // Adds the report and gives the output its name.
  virtual void commit(const nlohmann::ordered_json& report) = 0;
  virtual uint64_t weight_bytes() const noexcept = 0;
};

// Builds in `staging`, where an unfinished job of the same plan may have left its part. Throws invalid_argument when the output exists
// and is not to be replaced; io when the disk has no room for all weights.
std::unique_ptr<Output> make_output(const QuantizeJob& job, const Prepared& ready,
                                    const std::filesystem::path& staging, ThreadPool& pool);

}  // namespace gramian
