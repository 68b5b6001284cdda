#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/float16.h"

namespace gramian {
namespace {

struct Case {
  int64_t rows = 2, heads = 3, tokens = 5, size = 0, half = 0;
  bool pairs = false;
};

// bf16 heads [rows, tokens, heads, size] in memory, turned as [rows, heads, tokens, size].
std::vector<uint16_t> run(CpuLevel level, const Case& c, const std::vector<uint16_t>& x,
                          const std::vector<float>& cos, const std::vector<float>& sin) {
  std::vector<uint16_t> y(x.size());
  rope_rows(level,
            {.type = DType::bf16,
             .x = x.data(),
             .rows = c.rows,
             .heads = c.heads,
             .tokens = c.tokens,
             .size = c.size,
             .row_stride = c.tokens * c.heads * c.size,
             .head_stride = c.size,
             .token_stride = c.heads * c.size,
             .cos = cos.data(),
             .sin = sin.data(),
             .half = c.half,
             .pairs = c.pairs},
            y.data());
  return y;
}

TEST(Rope, TurnsPairsAndLeavesTheRestAtEveryLevel) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const auto& [size, half] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {6, 3}, {64, 32}, {64, 8}, {70, 33}}) {
    for (const bool pairs : {false, true}) {
      Case c;
      c.size = size;
      c.half = half;
      c.pairs = pairs;
      std::vector<uint16_t> x;
      for (int64_t i = 0; i < c.rows * c.heads * c.tokens * size; ++i)
        x.push_back(bf16_from_f32(normal(random)));
      std::vector<float> cos, sin;
      for (int64_t i = 0; i < c.tokens * half; ++i) {
        const float angle = normal(random);
        cos.push_back(std::cos(angle));
        sin.push_back(std::sin(angle));
      }
      std::vector<uint16_t> expected;
      for (int64_t row = 0; row < c.rows; ++row) {
        for (int64_t head = 0; head < c.heads; ++head) {
          for (int64_t token = 0; token < c.tokens; ++token) {
            const uint16_t* in = x.data() + ((row * c.tokens + token) * c.heads + head) * size;
            std::vector<uint16_t> out(in, in + size);
            for (int64_t j = 0; j < half; ++j) {
              const int64_t first = pairs ? 2 * j : j, second = pairs ? 2 * j + 1 : j + half;
              const float a = bf16_to_f32(in[first]), b = bf16_to_f32(in[second]);
              const float c_j = cos[token * half + j], s_j = sin[token * half + j];
              const float left = a * c_j, right = b * s_j, up = b * c_j, down = a * s_j;
              out[first] = bf16_from_f32(left - right);
              out[second] = bf16_from_f32(up + down);
            }
            expected.insert(expected.end(), out.begin(), out.end());
          }
        }
      }
      for (int l = 0; l <= static_cast<int>(detected_cpu_level()); ++l)
        EXPECT_EQ(run(static_cast<CpuLevel>(l), c, x, cos, sin), expected) << l << " size " << size;
    }
  }
}

}  // namespace
}  // namespace gramian
