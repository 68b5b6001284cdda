#include "pipeline/source_scan.h"

#include <ATen/core/Tensor.h>

#include <set>
#include <string>

#include "base/digest.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "formats/encoded_tensor.h"
#include "pipeline/non_finite.h"

namespace gramian {
namespace {

// The tensors that hold biases of modules that will be quantized.
std::set<std::string> packed_biases(const QuantizePlan& plan) {
  std::set<std::string> names;
  for (const auto& layer : plan.layers) {
    for (const PlannedModule& module : layer) {
      if (module.quantize && module.linear.has_bias) names.insert(module.linear.bias_name());
    }
  }
  return names;
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
  const std::set<std::string> biases = packed_biases(plan);
  std::string problems;
  int64_t bad_tensors = 0;
  Progress progress(log, "tensors scanned", static_cast<int64_t>(checkpoint.tensors().size()));
  double done = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    throw_if_interrupted();
    progress.update(done++, name);
    NonFinite findings = find_non_finite(tensor, pool);
    const bool non_finite = findings.count > 0;
    if (!non_finite && biases.contains(name)) findings = find_beyond_half(tensor);
    digests[name] = digest(tensor.bytes, &pool);
    if (tensor.encoding != nullptr && !tensor.encoding->scales.bytes.empty())
      digests[name] += digest(tensor.encoding->scales.bytes);
    tensor.drop();
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
