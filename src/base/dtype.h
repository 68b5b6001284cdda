// Element types as safetensors files name them.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace gramian {

enum class DType {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0
};

// Bytes of one element.
size_t dtype_bytes(DType dtype) noexcept;
// "F32", "BF16", ... as in a safetensors header.
std::string_view dtype_name(DType dtype) noexcept;
std::optional<DType> dtype_from_name(std::string_view name) noexcept;

}  // namespace gramian
