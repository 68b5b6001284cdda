#include "eval/generated_rows.h"

#include <cmath>

#include "tensor/ops.h"

namespace gramian {
namespace {

float value(const GeneratedRows& which, uint64_t place) {
  uint64_t z =
      which.seed * 0xD1B54A32D192ED03 + which.stream * 0x8CB92BA72F3D8DD7 + (place + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  z ^= z >> 31;
  int64_t sum = -131070;  // four times the mean of 16 bits
  for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>(z >> 16 * i & 0xffff);
  return static_cast<float>(sum) / 32768.0f;
}

}  // namespace

at::Tensor generated_rows(const GeneratedRows& which, int64_t tokens, int64_t columns) {
  at::Tensor x = tensor::empty({tokens, columns}, at::kFloat);
  auto* row = x.mutable_data_ptr<float>();
  for (int64_t t = 0; t < tokens; ++t, row += columns) {
    const auto first = static_cast<uint64_t>(t * columns);
    for (int64_t j = 0; j < columns; ++j) row[j] = value(which, first + static_cast<uint64_t>(j));
    const float wrapped = row[0];
    for (int64_t j = 0; j < columns; ++j) {
      const float next = j + 1 < columns ? row[j + 1] : wrapped;
      row[j] = std::ldexp(row[j] + 0.5f * next, static_cast<int>(7 * j % 5) - 2);
    }
  }
  return x;
}

}  // namespace gramian
