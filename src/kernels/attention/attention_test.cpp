#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "kernels/float16.h"
#include "kernels/test_values.h"

namespace gramian {
namespace {

// Values of a type in memory, and what they are.
struct Values {
  std::vector<float> f32;
  std::vector<uint16_t> half;
  std::vector<double> exact;
  const void* data(DType type) const {
    return type == DType::f32 ? static_cast<const void*>(f32.data()) : half.data();
  }
};

double widened(DType type, uint16_t half) {
  return type == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
}

Values random_values(DType type, int64_t count, float size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Values values;
  for (int64_t i = 0; i < count; ++i) {
    const float value = size * normal(random);
    values.f32.push_back(value);
    values.half.push_back(type == DType::f16 ? f16_from_f32(value) : bf16_from_f32(value));
    values.exact.push_back(type == DType::f32 ? value : widened(type, values.half.back()));
  }
  return values;
}

struct Shape {
  int64_t rows, heads, kv_heads, positions, size, value_size;
};

// Keys and values lie in a cache with room for more.
constexpr int64_t kSpare = 3;

struct Case {
  Shape shape;
  DType type, kept;
  Values q, k, v;
  OneQuery query;
};

// Keys and values of `kept`, or of `type`.
Case random_case(const Shape& s, DType type, float size, uint32_t seed,
                 std::optional<DType> other = std::nullopt) {
  const DType kept = other.value_or(type);
  const int64_t capacity = s.positions + kSpare;
  Case c{s,
         type,
         kept,
         random_values(type, s.rows * s.heads * s.size, size, seed),
         random_values(kept, s.rows * s.kv_heads * capacity * s.size, size, seed + 1),
         random_values(kept, s.rows * s.kv_heads * capacity * s.value_size, 1, seed + 2),
         {}};
  c.query = {.type = type,
             .kept = kept,
             .q = nullptr,
             .k = nullptr,
             .v = nullptr,
             .rows = s.rows,
             .heads = s.heads,
             .kv_heads = s.kv_heads,
             .positions = s.positions,
             .size = s.size,
             .value_size = s.value_size,
             .q_row_stride = s.heads * s.size,
             .q_head_stride = s.size,
             .k_row_stride = s.kv_heads * capacity * s.size,
             .k_head_stride = capacity * s.size,
             .k_position_stride = s.size,
             .v_row_stride = s.kv_heads * capacity * s.value_size,
             .v_head_stride = capacity * s.value_size,
             .v_position_stride = s.value_size,
             .scale = 0.3f};
  return c;
}

std::vector<std::byte> run(CpuLevel level, const Case& c, ThreadPool* pool = nullptr) {
  OneQuery query = c.query;
  query.q = c.q.data(c.type);
  query.k = c.k.data(c.kept);
  query.v = c.v.data(c.kept);
  const int64_t count = c.shape.rows * c.shape.heads * c.shape.value_size;
  std::vector<std::byte> out(static_cast<size_t>(count * (c.type == DType::f32 ? 4 : 2)));
  attend_one_query(level, query, out.data(), pool);
  return out;
}

void check(const Case& c, const std::vector<std::byte>& out) {
  const Shape& s = c.shape;
  const int64_t capacity = s.positions + kSpare;
  const double unit = c.type == DType::f32 ? 4e-6 : c.type == DType::f16 ? 0x1p-11 : 0x1p-8;
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t kv = row * s.kv_heads + h / (s.heads / s.kv_heads);
      std::vector<double> p;
      for (int64_t i = 0; i < s.positions; ++i) {
        double score = 0;
        for (int64_t j = 0; j < s.size; ++j)
          score += c.q.exact[(row * s.heads + h) * s.size + j] * c.k.exact[(kv * capacity + i) * s.size + j];
        p.push_back(score * double{0.3f});
      }
      double most = p[0], total = 0;
      for (const double score : p) most = std::max(most, score);
      for (double& score : p) total += score = std::exp(score - most);
      for (int64_t j = 0; j < s.value_size; ++j) {
        double expected = 0, size = 0;
        for (int64_t i = 0; i < s.positions; ++i) {
          const double part = p[i] / total * c.v.exact[(kv * capacity + i) * s.value_size + j];
          expected += part;
          size += std::fabs(part);
        }
        // One rounding to the type; scores of some tens carry 1e-6 of themselves into the exponent.
        const int64_t at = (row * s.heads + h) * s.value_size + j;
        EXPECT_NEAR(loaded(c.type, out, at), expected, unit * std::fabs(expected) + 2e-5 * size) << at;
      }
    }
  }
}

TEST(OneQuery, IsSoftmaxAttentionAndEveryLevelGivesTheSameBits) {
  uint32_t seed = 0;
  const Shape shapes[] = {{1, 1, 1, 1, 1, 1},      {1, 4, 2, 5, 64, 64},  {2, 3, 3, 17, 15, 16},
                          {1, 8, 1, 33, 128, 128}, {1, 2, 2, 40, 96, 64}, {1, 6, 2, 16, 256, 128},
                          {1, 2, 1, 100, 192, 20}, {1, 5, 5, 31, 80, 80}};
  for (const Shape& shape : shapes) {
    for (const DType type : kTestTypes) {
      const Case c = random_case(shape, type, 1, ++seed * 10);
      const std::vector<std::byte> reference = run(CpuLevel::reference, c);
      check(c, reference);
      for (int l = 1; l <= static_cast<int>(detected_cpu_level()); ++l)
        EXPECT_EQ(run(static_cast<CpuLevel>(l), c), reference) << l << " size " << shape.size;
    }
    for (const DType kept : {DType::f16, DType::bf16}) {
      const Case c = random_case(shape, DType::f32, 1, ++seed * 10, kept);
      const std::vector<std::byte> reference = run(CpuLevel::reference, c);
      check(c, reference);
      for (int l = 1; l <= static_cast<int>(detected_cpu_level()); ++l)
        EXPECT_EQ(run(static_cast<CpuLevel>(l), c), reference) << l << " size " << shape.size;
    }
  }
}

TEST(OneQuery, DominatingKeysAndThreads) {
  const Case far =
      random_case({1, 2, 1, 50, 64, 64}, DType::f32, 30, 5);  // scores apart by thousands: one key is all
  check(far, run(detected_cpu_level(), far));
  const Case large = random_case({1, 8, 4, 5000, 64, 64}, DType::bf16, 1, 6);
  ThreadPool pool(3);
  EXPECT_EQ(run(detected_cpu_level(), large, &pool), run(detected_cpu_level(), large));
}

TEST(OneQuery, ANanShows) {
  Case c = random_case({1, 4, 2, 20, 64, 64}, DType::bf16, 1, 7);
  c.q.half[64] = 0x7fc0;  // of head 1
  for (int l = 0; l <= static_cast<int>(detected_cpu_level()); ++l) {
    const std::vector<std::byte> out = run(static_cast<CpuLevel>(l), c);
    for (int64_t i = 0; i < 4 * 64; ++i) EXPECT_EQ(std::isnan(loaded(DType::bf16, out, i)), i / 64 == 1) << i;
  }
}

}  // namespace
}  // namespace gramian
