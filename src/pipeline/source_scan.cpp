#include "pipeline/source_scan.h"

#include <ATen/core/Tensor.h>

#include <string_view>

#include "base/digest.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "pipeline/non_finite.h"

namespace gramian {
namespace {

// Whether a module that will be quantized has this tensor as bias.
bool is_packed_bias(const QuantizePlan& plan, const std::string& name) {
  constexpr std::string_view kBias = ".bias";
  if (!name.ends_with(kBias)) return false;
  const PlannedModule* module = plan.find(name.substr(0, name.size() - kBias.size()));
  return module != nullptr && module->quantize && module->linear.has_bias;
}

NonFinite find_beyond_half(const StoredTensor& tensor) {
  const at::Tensor beyond = tensor.to_tensor().to(at::kHalf).isfinite().logical_not().flatten();
  NonFinite findings{.count = beyond.sum().item<int64_t>()};
  if (findings.count > 0) findings.first = beyond.to(at::kByte).argmax().item<int64_t>();
  return findings;
}

}  // namespace

std::map<std::string, std::string> scan_source(const Checkpoint& checkpoint, const QuantizePlan& plan,
                                               ThreadPool& pool, Log& log) {
  std::map<std::string, std::string> digests;
  std::string problems;
  int64_t bad_tensors = 0;
  Progress progress(log, "tensors scanned", static_cast<int64_t>(checkpoint.tensors().size()));
  double done = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    throw_if_interrupted();
    progress.update(done++, name);
    NonFinite findings = find_non_finite(tensor, pool);
    const bool non_finite = findings.count > 0;
    if (!non_finite && is_packed_bias(plan, name)) findings = find_beyond_half(tensor);
    digests[name] = digest(tensor.bytes, &pool);
    tensor.file->drop(tensor.bytes);
    if (findings.count == 0) continue;
    ++bad_tensors;
    problems += str("\n  ", name, ": ", findings.count, " value(s)",
                    non_finite ? "" : " beyond 65504, the largest of the F16 it will be stored in",
                    ", the first at ", position(tensor.shape, findings.first));
  }
  if (bad_tensors > 0) {
    throw Error(ErrorKind::corrupt_data, checkpoint.folder().string(),
                str("NaN or infinity in ", bad_tensors,
                    " tensor(s), as they are or as they will be stored:", problems),
                "fetch the checkpoint again, or mend these values");
  }
  return digests;
}

}  // namespace gramian
