// Internal to the formats layer: the JSON header of a safetensors file, checked and made.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace gramian::safetensors {

// The reference implementation's limit, in bytes.
constexpr uint64_t kHeaderBytesMax = 100'000'000;

struct Entry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  // Counted from the end of the header.
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Header {
  // Sorted by offset.
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

// Bytes of a tensor; nothing when the count, or a stride of such a tensor, leaves int64.
std::optional<uint64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape);

// Checks everything that can be checked against the `data_bytes` that follow the header. Throws corrupt_data
// naming `where`.
Header parse_header(std::string_view text, uint64_t data_bytes, const std::string& where);

}  // namespace gramian::safetensors
