// Reproducible token rows for the tests of this folder, of any type and layout.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "kernels/float16.h"
#include "kernels/gram/rows.h"

namespace gramian::gram {

struct TestLayout {
  int64_t padding = 0;   // elements between rows; they hold NaN
  bool indexed = false;  // rows shuffled, some of them used twice, others (NaN) not at all
  float mean = 0;
};

class TestRows {
 public:
  TestRows(DType type, int64_t tokens, int64_t columns, const TestLayout& layout) {
    std::mt19937 random(static_cast<uint32_t>(tokens * 1009 + columns));
    std::normal_distribution<float> normal;
    const int64_t stride = columns + layout.padding, rows = layout.indexed ? 2 * tokens + 1 : tokens;
    const auto bytes = static_cast<int64_t>(dtype_bytes(type));
    memory_.assign(static_cast<size_t>(rows * stride * bytes), std::byte{0xff});  // NaN in each type
    if (layout.indexed) {
      for (int64_t t = 0; t < tokens; ++t) index_.push_back(t % 3 == 2 ? index_[t - 1] : (t * 7919) % rows);
    }
    view = {.type = type,
            .data = memory_.data(),
            .stride = stride,
            .index = layout.indexed ? index_.data() : nullptr,
            .count = tokens,
            .columns = columns};
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t k = 0; k < columns; ++k) set(t, k, normal(random) + layout.mean);
    }
  }
  TestRows(const TestRows&) = delete;
  TestRows& operator=(const TestRows&) = delete;

  void set(int64_t t, int64_t k, float value) {
    std::byte* place = at(t, k);
    const uint16_t half = view.type == DType::f16 ? f16_from_f32(value) : bf16_from_f32(value);
    if (view.type == DType::f32) std::memcpy(place, &value, sizeof value);
    if (view.type != DType::f32) std::memcpy(place, &half, sizeof half);
  }
  double value(int64_t t, int64_t k) const {
    float single = 0;
    uint16_t half = 0;
    std::memcpy(&single, at(t, k), view.type == DType::f32 ? sizeof single : 0);
    std::memcpy(&half, at(t, k), sizeof half);
    if (view.type == DType::f32) return single;
    return view.type == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
  }

  Rows view;

 private:
  std::byte* at(int64_t t, int64_t k) const {
    const int64_t row = view.index != nullptr ? view.index[t] : t;
    return const_cast<std::byte*>(memory_.data()) +
           (row * view.stride + k) * static_cast<int64_t>(dtype_bytes(view.type));
  }

  std::vector<std::byte> memory_;
  std::vector<int64_t> index_;
};

}  // namespace gramian::gram
