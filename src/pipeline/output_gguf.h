// A job's output as one GGUF file: blocks of the quantized modules, and everything else of the model as `gramian convert` writes it. The
// embedding and the head get the types that llama.cpp gives them, modules that stay unquantized keep their own.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "formats/gguf/model_plan.h"
#include "formats/imatrix_file.h"
#include "pipeline/output.h"

namespace gramian {

// The file to be, decided before any work.
struct GgufPlan {
  gguf::ModelPlan model;
  // Of matrices that are no modules (the embedding, the head), by the file's names, where a file of importance has some.
  std::map<std::string, std::vector<float>> importance;
  uint64_t bytes() const;
};

// Of ready.subject, ready.plan and ready.importance. Throws what gguf::plan_model() throws.
GgufPlan plan_gguf(const QuantizeJob& job, const Prepared& ready, Log& log);
// Adds to the file's metadata how its codes come about, once all of `ready` is there.
void describe_job(const QuantizeJob& job, const Prepared& ready, gguf::Metadata& metadata);

// Where the report of the model in `output`, a folder or a GGUF file, is.
std::filesystem::path report_of(const std::filesystem::path& output);
// Throws invalid_argument when `output` is a folder, or a file that is not to be replaced.
void refuse_occupied_file(const std::filesystem::path& output, bool force);

class OutputGguf final : public Output {
 public:
  // Arguments as make_output().
  OutputGguf(const std::filesystem::path& path, bool force, const std::filesystem::path& staging,
             const Checkpoint& source, const GgufPlan& plan, const QuantizePlan& modules, ThreadPool& pool);

  void copy(bool begun) override;
  std::map<std::string, std::string> write(const PlannedModule& module, const PackedParts& parts) override;
  bool keep(const std::map<std::string, std::string>& digests) override;
  PackedParts read(const PlannedModule& module) const override;
  void sync() override { writer_.sync(); }
  void finish(const QuantizationFields& quantization, const std::optional<bool>& tied) override;
  const std::filesystem::path& staged() const noexcept override { return staged_; }
  std::vector<std::string> differences(const Checkpoint& written) const override;
  void commit(const nlohmann::ordered_json& report) override;
  uint64_t weight_bytes() const noexcept override;

 private:
  // A part of the file that holds one tensor of the checkpoint.
  struct Piece {
    size_t tensor = 0;
    uint64_t at = 0, size = 0;
  };
  Piece piece(const std::string& name) const;

  std::filesystem::path path_, staged_;
  bool force_;
  const Checkpoint& source_;
  const GgufPlan& plan_;
  const QuantizePlan& modules_;
  ThreadPool& pool_;
  gguf::PieceWriter writer_;
};

}  // namespace gramian
