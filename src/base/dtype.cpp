#include "base/dtype.h"

#include <array>

namespace gramian {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  size_t bytes;
};

// In the order of the enum.
constexpr std::array<Row, 16> kRows{{{DType::f64, "F64", 8},
                                     {DType::f32, "F32", 4},
                                     {DType::f16, "F16", 2},
                                     {DType::bf16, "BF16", 2},
                                     {DType::i64, "I64", 8},
                                     {DType::i32, "I32", 4},
                                     {DType::i16, "I16", 2},
                                     {DType::i8, "I8", 1},
                                     {DType::u64, "U64", 8},
                                     {DType::u32, "U32", 4},
                                     {DType::u16, "U16", 2},
                                     {DType::u8, "U8", 1},
                                     {DType::boolean, "BOOL", 1},
                                     {DType::f8_e4m3, "F8_E4M3", 1},
                                     {DType::f8_e5m2, "F8_E5M2", 1},
                                     {DType::f8_e8m0, "F8_E8M0", 1}}};

}  // namespace

size_t dtype_bytes(DType dtype) noexcept { return kRows[static_cast<size_t>(dtype)].bytes; }

std::string_view dtype_name(DType dtype) noexcept { return kRows[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace gramian
