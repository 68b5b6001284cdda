#include "pipeline/plain_copy.h"

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/interrupt.h"
#include "pipeline/output_folder.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

uint64_t write(const Checkpoint& source, const std::filesystem::path& folder, DType dtype, Log& log) {
  const auto rounds = [](DType type) {
    return tensor::zeros({0}, tensor::scalar_type(type)).is_floating_point();
  };
  std::vector<PlannedTensor> plan;
  for (const auto& [name, stored] : source.tensors())
    plan.push_back({name, rounds(stored.dtype) ? dtype : stored.dtype, stored.shape});
  ModelWriter writer(folder, plan, kShardBytesMax);
  Progress progress(log, "tensors", static_cast<int64_t>(plan.size()));
  double done = 0;
  for (const PlannedTensor& planned : plan) {
    throw_if_interrupted();
    progress.update(done++, planned.name);
    const StoredTensor& stored = source.tensor(planned.name);
    const at::Tensor values = stored.to_tensor().to(tensor::scalar_type(planned.dtype));
    if (values.is_floating_point() && !values.isfinite().all().item<bool>())
      throw Error(ErrorKind::numerical, planned.name,
                  str("leaves ", dtype_name(planned.dtype), ", or is not finite"), "convert --to bf16");
    writer.write(planned.name, values.contiguous());
    stored.drop();
  }
  writer.finish();
  copy_side_files(source, folder);
  nlohmann::ordered_json config = source.config();
  config["torch_dtype"] = dtype == DType::bf16 ? "bfloat16" : "float16";
  write_atomically(folder / "config.json", config.dump(2) + "\n");
  return writer.total_bytes();
}

}  // namespace

uint64_t write_plain(const Checkpoint& source, const std::filesystem::path& output, DType dtype, bool force,
                     Log& log) {
  uint64_t bytes = 0;
  write_folder(output, force,
               [&](const std::filesystem::path& folder) { bytes = write(source, folder, dtype, log); });
  return bytes;
}

}  // namespace gramian
