#include "pipeline/batch_files.h"

#include <limits>

#include "base/digest.h"
#include "base/error.h"
#include "formats/safetensors.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

std::vector<PlannedTensor> plan_of(const std::vector<at::Tensor>& batches) {
  std::vector<PlannedTensor> plan;
  for (size_t i = 0; i < batches.size(); ++i)
    plan.push_back({str("batch.", i), tensor::dtype_of(batches[i]), batches[i].sizes().vec()});
  return plan;
}

bool same_but_width(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return a.size() == b.size() && !a.empty() && std::equal(a.begin(), a.end() - 1, b.begin());
}

}  // namespace

std::string save_batches(const fs::path& folder, const std::vector<at::Tensor>& batches,
                         const EachBatch& each) {
  const std::vector<PlannedTensor> plan = plan_of(batches);
  fs::create_directory(folder);
  ModelWriter writer(folder, plan, std::numeric_limits<uint64_t>::max());
  std::vector<std::string> digests(plan.size());
  each([&](size_t batch) {
    const at::Tensor plain = batches[batch].to(at::kCPU).contiguous();
    writer.write(plan[batch].name, plain);
    digests[batch] = digest({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
  });
  writer.finish();
  std::string all;
  for (const std::string& part : digests) all += part;
  return digest(all);
}

bool load_batches(const fs::path& folder, const std::string& expected, const std::vector<at::Tensor>& like,
                  const EachBatch& each,
                  const std::function<void(size_t batch, const at::Tensor& stored)>& take) try {
  const std::vector<PlannedTensor> plan = plan_of(like);
  const SafetensorsFile file(folder / kSingleWeightsName);
  std::string all;
  for (const PlannedTensor& planned : plan) {
    if (!file.contains(planned.name)) return false;
    const StoredTensor& stored = file.tensor(planned.name);
    // A layer may have widened what the embedding gave.
    if (!same_but_width(stored.shape, planned.shape) || stored.dtype != planned.dtype) return false;
    all += digest(stored.bytes);
    stored.drop();
  }
  if (digest(all) != expected) return false;
  each([&](size_t batch) {
    const StoredTensor& stored = file.tensor(plan[batch].name);
    take(batch, stored.to_tensor());
    stored.drop();
  });
  return true;
} catch (const Error& error) {
  if (error.kind() == ErrorKind::corrupt_data || error.kind() == ErrorKind::invalid_argument) return false;
  throw;
}

}  // namespace gramian
