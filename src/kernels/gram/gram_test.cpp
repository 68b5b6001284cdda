// Every level against sums in float64, over awkward sizes.
#include "kernels/gram/gram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "kernels/float16.h"
#include "kernels/gram/test_rows.h"

namespace gramian::gram {
namespace {

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> all;
  for (int i = 0; i <= static_cast<int>(detected_cpu_level()); ++i) all.push_back(static_cast<CpuLevel>(i));
  return all;
}

std::string where(CpuLevel level, const TestRows& x, int64_t i, int64_t j) {
  return std::string(name(level)) + " " + std::string(dtype_name(x.view.type)) + " T " +
         std::to_string(x.view.count) + " K " + std::to_string(x.view.columns) + " at " + std::to_string(i) +
         ", " + std::to_string(j);
}

struct Entry {
  double sum = 0, magnitude = 0;  // Σ x_ti x_tj and Σ |x_ti x_tj|
};

Entry exact(const TestRows& x, int64_t i, int64_t j) {
  Entry entry;
  for (int64_t t = 0; t < x.view.count; ++t) {
    const double product = x.value(t, i) * x.value(t, j);
    entry.sum += product;
    entry.magnitude += std::abs(product);
  }
  return entry;
}

// Rounding of fp32 sums: each token is rounded at most twice (product and sum; a bf16 pair once each), a value passes
// through its block's chain and then joins the caller's sum once per block and call.
double bound(const TestRows& x, const Entry& entry, double before) {
  constexpr double kRounding = 0x1p-24;
  const auto tokens = static_cast<double>(x.view.count);
  const double chain = 2 * std::min<double>(tokens, 2 * kDepth) + tokens / kDepth + 2;
  return kRounding * (chain * entry.magnitude + (tokens / kDepth + 2) * std::abs(before)) +
         (x.view.type == DType::bf16 ? 1e-37 * tokens : 0);
}

constexpr float kUntouched = -77.5f;

// h += XᵀX in `parts` parts on `threads` threads.
void add(CpuLevel level, const Rows& x, float* h, int64_t stride, int64_t parts = 1, int threads = 1) {
  ThreadPool pool(threads);
  pool.run(parts, [&](int64_t part) {
    const auto workspace = std::make_unique_for_overwrite<Workspace>();
    add_lower(level, x, part_begin(x.columns, parts, part), part_begin(x.columns, parts, part + 1), h, stride,
              *workspace);
  });
}

std::vector<float> initial(int64_t columns, int64_t stride) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> h(columns * stride, kUntouched);
  for (int64_t i = 0; i < columns; ++i) {
    for (int64_t j = 0; j <= i; ++j) h[i * stride + j] = normal(random);
  }
  return h;
}

// Every level: `times` additions to a non-zero h whose rows are longer than K.
void expect_gram(const TestRows& x, int times = 1) {
  const int64_t columns = x.view.columns, stride = columns + 3;
  const std::vector<float> before = initial(columns, stride);
  std::vector<Entry> entries(columns * stride);
  for (int64_t i = 0; i < columns; ++i) {
    for (int64_t j = 0; j <= i; ++j) entries[i * stride + j] = exact(x, i, j);
  }
  for (const CpuLevel level : levels()) {
    std::vector<float> h = before;
    for (int time = 0; time < times; ++time) add(level, x.view, h.data(), stride);
    for (int64_t i = 0; i < columns; ++i) {
      for (int64_t j = 0; j < stride; ++j) {
        const int64_t place = i * stride + j;
        if (j > i) {
          ASSERT_EQ(h[place], kUntouched) << where(level, x, i, j);
          continue;
        }
        const double first = before[place], grown = std::abs(first) + times * entries[place].magnitude;
        ASSERT_LE(std::abs(h[place] - first - times * entries[place].sum),
                  times * bound(x, entries[place], grown))
            << where(level, x, i, j);
      }
    }
  }
}

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

TEST(Gram, MatchesFloat64OverAwkwardSizes) {
  for (const DType type : kTypes) {
    for (const int64_t columns : {1, 2, 15, 16, 17, 23, 24, 25, 31, 33, 47, 48, 49, 63, 64, 65, 127}) {
      for (const int64_t tokens : {0, 1, 2, 3, 15, 16, 17, 511}) {
        expect_gram(TestRows(type, tokens, columns, {}));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// More than one strip, group, chain and block of tokens.
TEST(Gram, MatchesFloat64AcrossStripsAndBlocks) {
  expect_gram(TestRows(DType::f32, 2, 896, {}));
  expect_gram(TestRows(DType::f16, 1, kStrip + kGroup + 1, {}));
  expect_gram(TestRows(DType::bf16, 3, kStrip + 49, {}));
  expect_gram(TestRows(DType::f32, 129, 193, {}));
  expect_gram(TestRows(DType::f32, 385, 64, {}));
  expect_gram(TestRows(DType::bf16, 1027, 65, {}));
  expect_gram(TestRows(DType::f16, 513, 49, {}));
}

TEST(Gram, StridedAndIndexedRowsAndRepeatedAdditions) {
  for (const DType type : kTypes) {
    for (const int64_t columns : {1, 33, 64, 127}) {
      for (const int64_t tokens : {1, 17, 530}) {
        expect_gram(TestRows(type, tokens, columns, {.padding = 5}));
        expect_gram(TestRows(type, tokens, columns, {.indexed = true}));
        expect_gram(TestRows(type, tokens, columns, {.padding = 3, .indexed = true}), 3);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Gram, LargeMeans) {
  for (const DType type : kTypes) expect_gram(TestRows(type, 700, 65, {.mean = 100}));
}

// Parts may be any division of the rows; threads change nothing.
TEST(Gram, BitsDependNeitherOnPartsNorOnThreads) {
  for (const CpuLevel level : levels()) {
    for (const DType type : kTypes) {
      for (const int64_t columns : {1, 97, 640}) {
        const TestRows x(type, level == CpuLevel::reference ? 5 : 300, columns, {});
        const std::vector<float> before = initial(columns, columns);
        std::vector<float> whole = before;
        add(level, x.view, whole.data(), columns);
        for (const int64_t parts : {3, 8, 40}) {
          for (const int threads : {1, 2}) {
            std::vector<float> h = before;
            add(level, x.view, h.data(), columns, parts, threads);
            ASSERT_EQ(std::memcmp(h.data(), whole.data(), h.size() * sizeof(float)), 0)
                << where(level, x, parts, threads);
          }
        }
      }
    }
  }
}

TEST(Gram, NonFiniteValuesReachTheirEntriesOnly) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const CpuLevel level : levels()) {
    for (const DType type : kTypes) {
      for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
        for (const int64_t column : {0, 50, 64}) {
          TestRows x(type, 301, 65, {});
          x.set(300, column, bad);
          std::vector<float> h = initial(65, 65);
          add(level, x.view, h.data(), 65);
          for (int64_t i = 0; i < 65; ++i) {
            for (int64_t j = 0; j <= i; ++j) {
              ASSERT_EQ(std::isfinite(h[i * 65 + j]), i != column && j != column) << where(level, x, i, j);
              if (std::isnan(bad) && (i == column || j == column)) {
                ASSERT_TRUE(std::isnan(h[i * 65 + j])) << where(level, x, i, j);
              }
            }
          }
        }
      }
    }
  }
}

TEST(Gram, PartsCoverTheRowsOnceWithEqualWork) {
  for (const int64_t columns : {1, 47, 48, 49, 896, 4096, 5000}) {
    for (const int64_t parts : {1, 2, 3, 8, 64}) {
      EXPECT_EQ(part_begin(columns, parts, 0), 0);
      EXPECT_EQ(part_begin(columns, parts, parts), columns);
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t begin = part_begin(columns, parts, part), end = part_begin(columns, parts, part + 1);
        EXPECT_LE(begin, end);
        EXPECT_TRUE(begin % kPanel == 0 || begin == columns) << begin;
        const auto work = static_cast<double>(end * (end + 1) - begin * (begin + 1)) / 2;
        const auto even = static_cast<double>(columns * (columns + 1)) / 2 / static_cast<double>(parts);
        EXPECT_NEAR(work, even, static_cast<double>(kPanel * columns))
            << columns << " " << parts << " " << part;
      }
    }
  }
}

TEST(Gram, ScaledAndMirrored) {
  for (const int64_t columns : {1, 31, 32, 33, 100}) {
    const int64_t stride = columns + 2;
    const std::vector<float> before = initial(columns, stride);
    std::vector<float> h = before;
    scale_and_mirror(h.data(), columns, stride, 0.3f);
    for (int64_t i = 0; i < columns; ++i) {
      for (int64_t j = 0; j < stride; ++j) {
        const float expected =
            j < columns ? before[std::max(i, j) * stride + std::min(i, j)] * 0.3f : kUntouched;
        ASSERT_EQ(h[i * stride + j], expected) << columns << " at " << i << ", " << j;
      }
    }
  }
}

TEST(GramBlocks, MatchFloat64) {
  for (const CpuLevel level : levels()) {
    for (const DType type : kTypes) {
      for (const int64_t columns : {1, 15, 16, 17, 47, 48, 65, 127, 640}) {
        for (const int64_t tokens : {0, 1, 2, 17, 530}) {
          const TestRows x(type, tokens, columns, {.padding = 2, .indexed = tokens == 17});
          const int64_t count = (columns + kBlockWidth - 1) / kBlockWidth;
          std::vector<float> blocks(count * kBlockWidth * kBlockWidth, 0.25f);
          const auto workspace = std::make_unique_for_overwrite<Workspace>();
          add_blocks(level, x.view, 0, count, blocks.data(), *workspace);
          for (int64_t i = 0; i < count * kBlockWidth; ++i) {
            for (int64_t c = 0; c < kBlockWidth; ++c) {
              const int64_t j = i / kBlockWidth * kBlockWidth + c;
              const Entry entry = i < columns && j < columns ? exact(x, i, j) : Entry{};
              ASSERT_LE(std::abs(blocks[i * kBlockWidth + c] - 0.25 - entry.sum),
                        bound(x, entry, 0.25 + entry.magnitude))
                  << where(level, x, i, j);
            }
          }
        }
      }
    }
  }
}

TEST(GramBlocks, RangesGiveTheBitsOfTheWholeAndTouchNothingElse) {
  for (const CpuLevel level : levels()) {
    for (const DType type : kTypes) {
      const TestRows x(type, 300, 333, {});
      const int64_t count = 21, size = kBlockWidth * kBlockWidth;
      const auto workspace = std::make_unique_for_overwrite<Workspace>();
      std::vector<float> whole(count * size), parts(count * size);
      add_blocks(level, x.view, 0, count, whole.data(), *workspace);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{20, 21}, {0, 1}, {1, 8}, {8, 20}}) {
        const std::vector<float> before = parts;
        add_blocks(level, x.view, begin, end, parts.data(), *workspace);
        for (int64_t i = 0; i < count * size; ++i) {
          const bool inside = i >= begin * size && i < end * size;
          ASSERT_EQ(parts[i], inside ? whole[i] : before[i]) << name(level) << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace gramian::gram
