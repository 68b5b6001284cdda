#include "pipeline/non_finite.h"

#include <algorithm>
#include <cstring>

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

}  // namespace

NonFinite find_non_finite(const StoredTensor& tensor, ThreadPool& pool) {
  const auto values = static_cast<int64_t>(tensor.bytes.size() / dtype_bytes(tensor.dtype));
  std::vector<int64_t> found(static_cast<size_t>((values + kChunk - 1) / kChunk));
  pool.run(static_cast<int64_t>(found.size()), [&](int64_t chunk) {
    const int64_t begin = chunk * kChunk;
    found[static_cast<size_t>(chunk)] = count_in(tensor, begin, std::min(kChunk, values - begin));
  });
  NonFinite result;
  for (size_t chunk = 0; chunk < found.size(); ++chunk) {
    if (found[chunk] != 0 && result.first < 0) {
      result.first = static_cast<int64_t>(chunk) * kChunk;
      while (count_in(tensor, result.first, 1) == 0) ++result.first;
    }
    result.count += found[chunk];
  }
  return result;
}

std::string position(const std::vector<int64_t>& shape, int64_t flat) {
  std::string text;
  for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
    text = std::to_string(flat % *size) + (text.empty() ? "" : ", ") + text;
    flat /= *size;
  }
  return "[" + text + "]";
}

}  // namespace gramian
