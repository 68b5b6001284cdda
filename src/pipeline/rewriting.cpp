#include "pipeline/rewriting.h"

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"
#include "pipeline/output_folder.h"
#include "pipeline/preflight.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kValuesAtOnce = int64_t{1} << 23;

void refuse_encoded(const Checkpoint& checkpoint) {
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.encoding == nullptr) continue;
    throw Error(ErrorKind::unsupported, checkpoint.folder().string(), name + " is stored encoded",
                "use a checkpoint of bf16, f16 or f32 weights");
  }
}

at::Tensor after(at::Tensor values, const std::vector<Rewriting::Step>& steps) {
  for (const Rewriting::Step& step : steps) values = step(values);
  return values;
}

}  // namespace

std::unique_ptr<const Model> open_for_rewriting(const fs::path& source, const fs::path& output, bool force,
                                                at::ScalarType dtype) {
  StagedDirectory::refuse_occupied(output, force);
  auto checkpoint = std::make_shared<const Checkpoint>(source);
  refuse_quantized(*checkpoint);
  refuse_encoded(*checkpoint);
  return std::make_unique<const Model>(std::move(checkpoint), ModelOptions{.dtype = dtype, .quantized = {}});
}

Rewriting::Rewriting(const Checkpoint& source, std::string remedy)
    : source_(source), remedy_(std::move(remedy)), config_(source.config()) {}

void Rewriting::columns(const std::string& tensor, Step step) {
  changes_[tensor].columns.push_back(std::move(step));
}
void Rewriting::rows(const std::string& tensor, Step step) {
  changes_[tensor].rows.push_back(std::move(step));
}
void Rewriting::replace(const std::string& tensor, at::Tensor values) {
  changes_[tensor].instead = std::move(values);
}
void Rewriting::add(const std::string& tensor, const std::string& like) { added_[tensor] = like; }

at::Tensor Rewriting::changed(const std::string& name, const StoredTensor& stored) const {
  const Change& change = changes_.at(name);
  const at::Tensor source = change.instead.defined() ? change.instead : stored.to_tensor();
  const at::ScalarType type = tensor::scalar_type(stored.dtype);
  // Between the steps of columns and of rows values are not rounded.
  at::Tensor result = tensor::empty(source.sizes(), change.rows.empty() ? type : at::kDouble);
  const int64_t at_once =
      source.dim() < 2 ? source.size(0) : std::max<int64_t>(1, kValuesAtOnce / source.size(1));
  for (int64_t row = 0; row < source.size(0); row += at_once) {
    const int64_t end = std::min(row + at_once, source.size(0));
    result.slice(0, row, end).copy_(after(source.slice(0, row, end).to(at::kDouble), change.columns));
    throw_if_interrupted();
  }
  result = after(result, change.rows).to(type).contiguous();
  if (!result.isfinite().all().item<bool>())
    throw Error(ErrorKind::numerical, name, "leaves its type when it is rewritten", remedy_);
  return result;
}

uint64_t Rewriting::write_into(const fs::path& folder) const {
  std::map<std::string, const StoredTensor*> tensors;
  for (const auto& [name, stored] : source_.tensors()) tensors[name] = &stored;
  for (const auto& [name, like] : added_) tensors[name] = &source_.tensor(like);
  std::vector<PlannedTensor> plan;
  for (const auto& [name, stored] : tensors) plan.push_back({name, stored->dtype, stored->shape});
  ModelWriter writer(folder, plan, kShardBytesMax);
  for (const auto& [name, stored] : tensors) {
    throw_if_interrupted();
    if (changes_.contains(name)) {
      writer.write(name, changed(name, *stored));
    } else {
      writer.write(name, stored->bytes);
    }
    stored->drop();
  }
  writer.finish();
  copy_side_files(source_, folder);
  write_atomically(folder / "config.json", config_.dump(2) + "\n");
  return writer.total_bytes();
}

uint64_t Rewriting::write(const fs::path& output, bool force) const {
  uint64_t bytes = 0;
  write_folder(output, force, [&](const fs::path& folder) { bytes = write_into(folder); });
  return bytes;
}

}  // namespace gramian
