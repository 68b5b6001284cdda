#include "pipeline/source_scan.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/interrupt.h"

namespace gramian {
namespace {

constexpr int64_t kChunk = int64_t{1} << 22;  // values scanned as one task

// Values whose exponent bits are all ones.
template <class Word>
int64_t count_non_finite(const std::byte* data, int64_t count, Word exponent) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    Word bits;
    std::memcpy(&bits, data + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    found += (bits & exponent) == exponent;
  }
  return found;
}

int64_t count_in(const StoredTensor& tensor, int64_t begin, int64_t count) {
  const std::byte* data = tensor.bytes.data() + begin * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  switch (tensor.dtype) {
    case DType::f64:
      return count_non_finite<uint64_t>(data, count, 0x7ff0000000000000u);
    case DType::f32:
      return count_non_finite<uint32_t>(data, count, 0x7f800000u);
    case DType::f16:
      return count_non_finite<uint16_t>(data, count, 0x7c00u);
    case DType::bf16:
      return count_non_finite<uint16_t>(data, count, 0x7f80u);
    default:
      return 0;
  }
}

// "[3, 17]" for flat index `flat`.
std::string position(const std::vector<int64_t>& shape, int64_t flat) {
  std::string text;
  for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
    text = std::to_string(flat % *size) + (text.empty() ? "" : ", ") + text;
    flat /= *size;
  }
  return "[" + text + "]";
}

struct Findings {
  int64_t count = 0;
  int64_t first = -1;  // flat index
};

Findings find_non_finite(const StoredTensor& tensor, ThreadPool& pool) {
  const auto values = static_cast<int64_t>(tensor.bytes.size() / dtype_bytes(tensor.dtype));
  std::vector<int64_t> found(static_cast<size_t>((values + kChunk - 1) / kChunk));
  pool.run(static_cast<int64_t>(found.size()), [&](int64_t chunk) {
    const int64_t begin = chunk * kChunk;
    found[static_cast<size_t>(chunk)] = count_in(tensor, begin, std::min(kChunk, values - begin));
  });
  Findings findings;
  for (size_t chunk = 0; chunk < found.size(); ++chunk) {
    if (found[chunk] != 0 && findings.first < 0) {
      findings.first = static_cast<int64_t>(chunk) * kChunk;
      while (count_in(tensor, findings.first, 1) == 0) ++findings.first;
    }
    findings.count += found[chunk];
  }
  return findings;
}

// Whether a module that will be quantized has this tensor as bias.
bool is_packed_bias(const QuantizePlan& plan, const std::string& name) {
  constexpr std::string_view kBias = ".bias";
  if (!name.ends_with(kBias)) return false;
  const PlannedModule* module = plan.find(name.substr(0, name.size() - kBias.size()));
  return module != nullptr && module->quantize && module->linear.has_bias;
}

Findings find_beyond_half(const StoredTensor& tensor) {
  const at::Tensor beyond = tensor.to_tensor().to(at::kHalf).isfinite().logical_not().flatten();
  Findings findings{.count = beyond.sum().item<int64_t>()};
  if (findings.count > 0) findings.first = beyond.to(at::kByte).argmax().item<int64_t>();
  return findings;
}

}  // namespace

void refuse_non_finite(const Checkpoint& checkpoint, const QuantizePlan& plan, ThreadPool& pool, Log& log) {
  std::string problems;
  int64_t bad_tensors = 0;
  Progress progress(log, "tensors scanned", static_cast<int64_t>(checkpoint.tensors().size()));
  double done = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    throw_if_interrupted();
    progress.update(done++, name);
    Findings findings = find_non_finite(tensor, pool);
    const bool non_finite = findings.count > 0;
    if (!non_finite && is_packed_bias(plan, name)) findings = find_beyond_half(tensor);
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
}

}  // namespace gramian
