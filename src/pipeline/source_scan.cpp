#include "pipeline/source_scan.h"

#include <algorithm>
#include <cstring>
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

}  // namespace

void refuse_non_finite(const Checkpoint& checkpoint, ThreadPool& pool, Log& log) {
  std::string problems;
  int64_t bad_tensors = 0;
  Progress progress(log, "tensors scanned", static_cast<int64_t>(checkpoint.tensors().size()));
  double done = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    throw_if_interrupted();
    progress.update(done++, name);
    const auto values = static_cast<int64_t>(tensor.bytes.size() / dtype_bytes(tensor.dtype));
    std::vector<int64_t> found(static_cast<size_t>((values + kChunk - 1) / kChunk));
    pool.run(static_cast<int64_t>(found.size()), [&, &tensor = tensor](int64_t chunk) {
      const int64_t begin = chunk * kChunk;
      found[static_cast<size_t>(chunk)] = count_in(tensor, begin, std::min(kChunk, values - begin));
    });
    int64_t total = 0, first = -1;
    for (size_t chunk = 0; chunk < found.size(); ++chunk) {
      if (found[chunk] != 0 && first < 0) {
        first = static_cast<int64_t>(chunk) * kChunk;
        while (count_in(tensor, first, 1) == 0) ++first;
      }
      total += found[chunk];
    }
    tensor.file->drop(tensor.bytes);
    if (total == 0) continue;
    ++bad_tensors;
    problems += str("\n  ", name, ": ", total, " value(s), the first at ", position(tensor.shape, first));
  }
  if (bad_tensors > 0) {
    throw Error(ErrorKind::corrupt_data, checkpoint.folder().string(),
                str("NaN or infinity in ", bad_tensors, " tensor(s):", problems),
                "fetch the checkpoint again, or mend these values");
  }
}

}  // namespace gramian
