#include "pipeline/non_finite.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>

#include "formats/encoded_tensor.h"

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
    found += (bits & exponent) == exponent;  // of E4M3, which has no infinity, all bits but the sign
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
    case DType::f8_e4m3:
      return count_non_finite<uint8_t>(data, count, 0x7fu);
    default:
      return 0;
  }
}

// Powers of two of which the largest code makes more than f32 holds, 2^126 and above, are as bad as NaN.
NonFinite find_bad_scales(const StoredTensor& scales, ThreadPool& pool) {
  if (scales.dtype != DType::u8) return find_non_finite(scales, pool);
  NonFinite result;
  for (size_t i = 0; i < scales.bytes.size(); ++i) {
    if (std::to_integer<int>(scales.bytes[i]) < 127 + 126) continue;
    if (result.count++ == 0) result.first = static_cast<int64_t>(i);
  }
  return result;
}

}  // namespace

NonFinite find_non_finite(const StoredTensor& tensor, ThreadPool& pool) {
  if (tensor.encoding != nullptr && tensor.encoding->kind == TensorEncoding::Kind::ggml) {
    const at::Tensor bad = tensor.to_tensor().isfinite().logical_not().flatten();
    NonFinite result{.count = bad.sum().item<int64_t>()};
    if (result.count > 0) result.first = bad.to(at::kByte).argmax().item<int64_t>();
    return result;
  }
  if (tensor.encoding != nullptr) {
    const NonFinite codes = find_non_finite(tensor.encoding->codes, pool);
    return codes.count > 0 ? codes : find_bad_scales(tensor.encoding->scales, pool);
  }
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
