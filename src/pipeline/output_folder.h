// The output of a job: packed tensors, everything else of the source byte for byte (decoded where the source encodes it),
// configuration and report, under the final name only when complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/linear_format.h"
#include "pipeline/plan.h"

namespace gramian {

// Throws invalid_argument when `output` is one of `inputs` or a folder that holds one (replacing it would remove what the
// job reads), or a folder that is not empty and no checkpoint.
void refuse_replacing(const std::filesystem::path& output, const std::vector<std::filesystem::path>& inputs);

// Tensor bytes of a shard.
inline constexpr uint64_t kShardBytesMax = uint64_t{4} << 30;

// Makes the folder `path` of what `write` puts into one beside it, which is synced and renamed; nothing is left behind when
// `write` throws. `force` replaces a checkpoint that is there.
void write_folder(const std::filesystem::path& path, bool force,
                  const std::function<void(const std::filesystem::path&)>& write);
// Everything that belongs to the model besides weights and configuration.
void copy_side_files(const Checkpoint& source, const std::filesystem::path& folder);

class OutputFolder {
 public:
  // Builds in `staging`, where an unfinished job of the same plan may have left its part. Throws invalid_argument when `path`
  // exists and is not empty, unless `force`; io when the disk has no room for all weights.
  OutputFolder(const std::filesystem::path& path, bool force, const std::filesystem::path& staging,
               const Checkpoint& source, const QuantizePlan& plan, uint64_t shard_bytes_max);

  // Copies the side files, and the tensors that the plan does not replace: `begun` is false, or takes them as they are there.
  void copy(bool begun);
  // Digests of the tensors written, by their names.
  std::map<std::string, std::string> write(const std::string& module, const PackedParts& parts);
  // Takes the tensors of a finished part of the job; false, and nothing taken, when their digests are not these.
  bool keep(const std::map<std::string, std::string>& digests);
  PackedParts read(const PlannedModule& module) const;
  // What was written survives a crash from here on.
  void sync() { writer_.sync(); }
  // Writes the index, config.json with `quantization` and quantize_config.json: the checkpoint in staged() is then complete.
  // `tied`: config.json is to say that the head is, or is not, the embedding, where the source's does not.
  void finish(const QuantizationFields& quantization, const std::optional<bool>& tied);
  const std::filesystem::path& staged() const noexcept { return staged_.path(); }
  // Adds the report and gives the folder its name.
  void commit(const nlohmann::ordered_json& report);
  uint64_t weight_bytes() const noexcept { return writer_.total_bytes(); }

 private:
  const Checkpoint& source_;
  const QuantizePlan& plan_;
  StagedDirectory staged_;
  ModelWriter writer_;
};

}  // namespace gramian
