// Every level against the reference, which computes in float64: lengths round a chunk, widths round a panel and a vector, decays
// from none to such that nothing is left, strided 16-bit vectors, threads.
#include "kernels/delta_rule/delta_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/float16.h"

namespace gramian {
namespace {

struct Problem {
  int64_t rows = 2, tokens = 30, key_heads = 2, heads = 4, d_k = 24, d_v = 20;
  bool per_channel = false;
  double decay = 0.05;  // typical -g
  DType type = DType::f32;
};

class Memory {
 public:
  explicit Memory(const Problem& p) : p_(p) {
    const auto fill = [&](int64_t heads, int64_t width, const auto& make) {
      std::vector<float> numbers(static_cast<size_t>(p.rows * p.tokens * heads * width));
      std::generate(numbers.begin(), numbers.end(), make);
      return numbers;
    };
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto plain = [&] { return normal(random); };
    q_ = fill(p.key_heads, p.d_k, plain);
    k_ = fill(p.key_heads, p.d_k, plain);
    v_ = fill(p.heads, p.d_v, plain);
    g_ = fill(p.heads, p.per_channel ? p.d_k : 1, [&] {
      return static_cast<float>(-p.decay * std::exp(2 * static_cast<double>(normal(random))));
    });
    beta_ = fill(p.heads, 1, [&] { return 2 / (1 + std::exp(normal(random))); });
    state_.resize(static_cast<size_t>(p.rows * p.heads * p.d_k * p.d_v));
    std::generate(state_.begin(), state_.end(), plain);
    if (p.type != DType::f32) {
      for (const auto* wide : {&q_, &k_, &v_}) {
        std::vector<uint16_t> narrow;
        for (const float value : *wide)
          narrow.push_back(p.type == DType::f16 ? f16_from_f32(value) : bf16_from_f32(value));
        half_.push_back(narrow);
      }
    }
  }

  struct Result {
    std::vector<float> out, state;
  };
  // Tokens in calls of `part` each.
  Result run(CpuLevel level, int threads = 1, int64_t part = 1 << 30) const {
    Result result{std::vector<float>(v_.size()), state_};
    for (int64_t begin = 0; begin < p_.tokens; begin += part) {
      const int64_t count = std::min(part, p_.tokens - begin);
      std::vector<float> out(static_cast<size_t>(p_.rows * count * p_.heads * p_.d_v));
      const bool half = p_.type != DType::f32;
      const auto of = [&](DType type, const void* data, size_t bytes, int64_t heads, int64_t width) {
        return HeadVectors{
            .type = type,
            .data = static_cast<const char*>(data) + static_cast<size_t>(begin * heads * width) * bytes,
            .row_stride = p_.tokens * heads * width,
            .token_stride = heads * width,
            .head_stride = width};
      };
      const auto vectors = [&](const std::vector<float>& wide, size_t index, int64_t heads, int64_t width) {
        return half ? of(p_.type, half_[index].data(), 2, heads, width)
                    : of(DType::f32, wide.data(), 4, heads, width);
      };
      const DeltaRule rule{.rows = p_.rows,
                           .tokens = count,
                           .key_heads = p_.key_heads,
                           .heads = p_.heads,
                           .d_k = p_.d_k,
                           .d_v = p_.d_v,
                           .per_channel = p_.per_channel,
                           .q = vectors(q_, 0, p_.key_heads, p_.d_k),
                           .k = vectors(k_, 1, p_.key_heads, p_.d_k),
                           .v = vectors(v_, 2, p_.heads, p_.d_v),
                           .g = of(DType::f32, g_.data(), 4, p_.heads, p_.per_channel ? p_.d_k : 1),
                           .beta = of(DType::f32, beta_.data(), 4, p_.heads, 1),
                           .state = result.state.data(),
                           .out = out.data()};
      run_delta_rule(level, rule, threads);
      const auto row = static_cast<std::ptrdiff_t>(p_.heads * p_.d_v);
      for (int64_t r = 0; r < p_.rows; ++r)
        std::copy_n(out.begin() + r * count * row, count * row,
                    result.out.begin() + (r * p_.tokens + begin) * row);
    }
    return result;
  }

 private:
  Problem p_;
  std::vector<float> q_, k_, v_, g_, beta_, state_;
  std::vector<std::vector<uint16_t>> half_;
};

double largest(const std::vector<float>& x) {
  double found = 0;
  for (const float value : x) found = std::max(found, std::abs(static_cast<double>(value)));
  return found;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected, double bound) {
  ASSERT_EQ(found.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(std::isfinite(found[i])) << i;
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
  }
  EXPECT_LT(worst, bound);
}

std::vector<CpuLevel> vector_levels() {
  std::vector<CpuLevel> levels;
  for (const CpuLevel level : {CpuLevel::avx2, CpuLevel::avx512}) {
    if (level <= detected_cpu_level()) levels.push_back(level);
  }
  return levels;
}

// A sum has some hundred rounded terms of the size of what went in: 3e-6 of the largest is 25 units in the last place.
void expect_levels_agree(const Problem& p) {
  SCOPED_TRACE(std::to_string(p.tokens) + " tokens, " + std::to_string(p.d_k) + " x " +
               std::to_string(p.d_v) + ", decay " + std::to_string(p.decay) +
               (p.per_channel ? " a channel" : ""));
  const Memory memory(p);
  const Memory::Result exact = memory.run(CpuLevel::reference);
  for (const CpuLevel level : vector_levels()) {
    for (const int64_t part : {int64_t{1} << 30, int64_t{1}, int64_t{17}}) {
      const Memory::Result found = memory.run(level, 1, part);
      expect_near(found.out, exact.out, 3e-6 * std::max(1.0, largest(exact.out)));
      expect_near(found.state, exact.state, 3e-6 * std::max(1.0, largest(exact.state)));
    }
  }
}

TEST(DeltaRuleKernel, Lengths) {
  for (const bool per_channel : {false, true}) {
    for (const int64_t tokens : {1, 2, 3, 5, 11, 12, 13, 23, 24, 25, 100})
      expect_levels_agree({.tokens = tokens, .per_channel = per_channel});
  }
}

TEST(DeltaRuleKernel, Widths) {
  for (const bool per_channel : {false, true}) {
    for (const int64_t d_k : {1, 7, 16, 17, 128}) {
      for (const int64_t d_v : {1, 15, 16, 33, 128})
        expect_levels_agree({.rows = 1, .tokens = 40, .d_k = d_k, .d_v = d_v, .per_channel = per_channel});
    }
  }
}

TEST(DeltaRuleKernel, DecaysFromNoneToAll) {
  for (const bool per_channel : {false, true}) {
    for (const double decay : {0.0, 1e-6, 1e-3, 1.0, 5.0, 30.0, 1e4})
      expect_levels_agree({.tokens = 60, .per_channel = per_channel, .decay = decay});
  }
}

TEST(DeltaRuleKernel, SharedKeysAndHalfTypes) {
  for (const DType type : {DType::f16, DType::bf16}) {
    for (const int64_t heads : {2, 6}) expect_levels_agree({.heads = heads, .type = type});
  }
}

TEST(DeltaRuleKernel, ThreadsAndOtherRowsChangeNothing) {
  for (const bool per_channel : {false, true}) {
    const Memory memory({.rows = 3, .tokens = 90, .d_k = 128, .d_v = 64, .per_channel = per_channel});
    const Memory::Result one = memory.run(detected_cpu_level(), 1),
                         three = memory.run(detected_cpu_level(), 3);
    EXPECT_EQ(one.out, three.out);
    EXPECT_EQ(one.state, three.state);
  }
}

TEST(DeltaRuleKernel, ScratchDoesNotGrowWithTheRow) {
  DeltaRule rule{.rows = 1, .tokens = 64, .key_heads = 1, .heads = 1, .d_k = 128, .d_v = 128};
  rule.per_channel = true;
  const int64_t bytes = delta_scratch_bytes(rule);
  rule.tokens = 4096;
  EXPECT_EQ(delta_scratch_bytes(rule), bytes);
  EXPECT_LT(bytes, 4 * (12 * 5 * (128 + 128) + 2 * 128 * 128));
}

}  // namespace
}  // namespace gramian
