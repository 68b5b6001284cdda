// NaN and infinity in stored tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "formats/safetensors.h"

namespace gramian {

struct NonFinite {
  int64_t count = 0;
  int64_t first = -1;  // flat index of the first
};
// Values of an F64, F32, F16, BF16 or F8_E4M3 tensor that are NaN or infinite; none in other types. Of an encoded tensor: its
// codes, else its scales (`first` counts in them). Reads the mapped bytes in chunks, shared among the pool's threads.
NonFinite find_non_finite(const StoredTensor& tensor, ThreadPool& pool);

// "[3, 17]" for flat index `flat`.
std::string position(const std::vector<int64_t>& shape, int64_t flat);

}  // namespace gramian
