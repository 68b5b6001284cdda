// Values of the types that kernels read and write, for their tests.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/float16.h"

namespace gramian {

inline constexpr DType kTestTypes[] = {DType::f32, DType::f16, DType::bf16};

// Element i of what a kernel wrote.
inline float loaded(DType type, const std::vector<std::byte>& bytes, int64_t i) {
  float wide = 0;
  uint16_t half = 0;
  if (type == DType::f32) {
    std::memcpy(&wide, bytes.data() + 4 * i, 4);
    return wide;
  }
  std::memcpy(&half, bytes.data() + 2 * i, 2);
  return type == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
}

}  // namespace gramian
