// A job's output as a model folder: packed tensors, everything else of the source byte for byte (decoded where the source encodes
// it), configuration and report.
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
#include "pipeline/output.h"
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

class OutputFolder final : public Output {
 public:
  // Throws invalid_argument when `path` exists and is not empty, unless `force`; io when the disk has no room for all weights.
  OutputFolder(const std::filesystem::path& path, bool force, const std::filesystem::path& staging,
               const Checkpoint& source, const QuantizePlan& plan, uint64_t shard_bytes_max);

  // The side files too.
  void copy(bool begun) override;
  std::map<std::string, std::string> write(const PlannedModule& module, const PackedParts& parts) override;
  bool keep(const std::map<std::string, std::string>& digests) override;
  PackedParts read(const PlannedModule& module) const override;
  void sync() override { writer_.sync(); }
  // Writes the index, config.json with `quantization` and quantize_config.json.
  void finish(const QuantizationFields& quantization, const std::optional<bool>& tied) override;
  const std::filesystem::path& staged() const noexcept override { return staged_.path(); }
  std::vector<std::string> differences(const Checkpoint& written) const override;
  void commit(const nlohmann::ordered_json& report) override;
  uint64_t weight_bytes() const noexcept override { return writer_.total_bytes(); }

 private:
  const Checkpoint& source_;
  const QuantizePlan& plan_;
  StagedDirectory staged_;
  ModelWriter writer_;
};

}  // namespace gramian
