#include "kernels/codecs/codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/codecs/fit.h"
#include "kernels/codecs/iq2_xxs_tables.h"
#include "kernels/float16.h"

namespace gramian {
namespace {

const float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> found;
  for (int i = 0; i <= static_cast<int>(detected_cpu_level()); ++i) found.push_back(static_cast<CpuLevel>(i));
  return found;
}

// Rows of many kinds, by `kind`: smooth, heavy-tailed, sparse, equal magnitudes, few values, scales that differ, tiny, zero.
std::vector<float> random_row(int64_t n, uint32_t seed, int kind) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> heavy(2.0f);
  std::vector<float> row(static_cast<size_t>(n));
  for (size_t i = 0; i < row.size(); ++i) {
    const float g = normal(random);
    switch (kind) {
      case 0:
        row[i] = 0.02f * g;
        break;
      case 1:
        row[i] = 0.1f * heavy(random);
        break;
      case 2:
        row[i] = random() % 8 == 0 ? g : 0.0f;
        break;
      case 3:
        row[i] = random() % 2 == 0 ? 0.5f : -0.5f;
        break;
      case 4:
        row[i] = static_cast<float>(static_cast<int>(random() % 3) - 1);
        break;
      case 5:
        row[i] = g * std::exp2(static_cast<float>(i / 16 % 24) - 12.0f);
        break;
      case 6:
        row[i] = g * 1e-15f;
        break;
      case 7:
        row[i] = std::fabs(g) + 3;
        break;
      default:
        row[i] = random() % 2 == 0 ? 0.0f : -0.0f;
    }
  }
  return row;
}
constexpr int kKinds = 9;

std::vector<float> random_importance(int64_t n, uint32_t seed, int kind) {
  std::mt19937 random(seed);
  std::lognormal_distribution<float> log_normal(0, 2);
  std::vector<float> importance(static_cast<size_t>(n));
  for (float& value : importance) {
    value = kind == 0 ? 1.0f : log_normal(random);
    if (kind == 2 && random() % 3 == 0) value = 0;
  }
  return importance;
}

std::vector<uint8_t> encoded(const Codec& codec, CpuLevel level, const std::vector<float>& x,
                             const float* importance) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint8_t> out(static_cast<size_t>(codec.row_bytes(n)) + 1, 0xa5);  // the extra byte must stay
  codec.encode(level, x.data(), n, importance, out.data());
  EXPECT_EQ(out.back(), 0xa5) << codec.name;
  out.pop_back();
  return out;
}

TEST(Codecs, TheTableHasEachTypeOnce) {
  std::set<std::string_view> names;
  std::set<uint32_t> types;
  for (const Codec& codec : codecs()) {
    EXPECT_TRUE(names.insert(codec.name).second) << codec.name;
    EXPECT_TRUE(types.insert(codec.ggml_type).second) << codec.name;
    EXPECT_EQ(find_codec(codec.name), &codec);
    EXPECT_EQ(find_codec(codec.ggml_type), &codec);
    EXPECT_EQ(codec.row_bytes(codec.block * 3), codec.bytes * 3);
  }
  EXPECT_EQ(find_codec("Q9_Z"), nullptr);
  EXPECT_EQ(find_codec(uint32_t{4}), nullptr);
}

TEST(Codecs, EveryLevelGivesTheBytesOfTheReference) {
  uint32_t seed = 1;
  for (const Codec& codec : codecs()) {
    for (int kind = 0; kind < kKinds; ++kind) {
      for (int weights = codec.needs_importance ? 0 : -1; weights < 3; ++weights) {
        // Rows whose blocks do not fill batches of eight.
        const int64_t n = codec.block * (1 + static_cast<int64_t>(seed % 11));
        const auto x = random_row(n, ++seed, kind), w = random_importance(n, ++seed, weights);
        const float* importance = weights < 0 ? nullptr : w.data();
        const auto expected = encoded(codec, CpuLevel::reference, x, importance);
        for (const CpuLevel level : levels()) {
          EXPECT_EQ(encoded(codec, level, x, importance), expected)
              << codec.name << " " << name(level) << " row kind " << kind << " importance " << weights
              << " seed " << seed;
        }
      }
    }
  }
}

// Relative error of Gaussian rows: a little above what a grid of that many levels can reach.
TEST(Codecs, DecodedValuesAreNear) {
  const std::vector<std::pair<std::string, double>> bounds = {
      {"F32", 0},     {"F16", 3e-4},    {"BF16", 2.5e-3}, {"Q8_0", 6e-3},   {"Q6_K", 0.025},
      {"Q5_1", 0.05}, {"Q5_0", 0.05},   {"Q5_K", 0.045},  {"Q4_1", 0.1},    {"Q4_0", 0.11},
      {"Q4_K", 0.09}, {"IQ4_NL", 0.09}, {"Q2_K", 0.35},   {"IQ2_XXS", 0.42}};
  ASSERT_EQ(bounds.size(), codecs().size());
  const int64_t n = 4096;
  const auto x = random_row(n, 3, 0);
  const auto w = random_importance(n, 4, 0);
  for (const auto& [type, bound] : bounds) {
    const Codec& codec = *find_codec(type);
    for (const bool anchored : {false, true}) {
      if (anchored && codec.anchored == nullptr) continue;
      for (const float* importance : {static_cast<const float*>(nullptr), w.data()}) {
        if (importance == nullptr && codec.needs_importance && !anchored) continue;
        std::vector<uint8_t> blocks(static_cast<size_t>(codec.row_bytes(n)));
        encode_rows(codec, x.data(), 1, n, {.importance = importance, .anchored = anchored}, blocks.data(),
                    "x");
        std::vector<float> y(x.size());
        decode_rows(codec, blocks.data(), 1, n, nullptr, y.data());
        double error = 0, energy = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          error += std::pow(static_cast<double>(y[i]) - x[i], 2);
          energy += std::pow(static_cast<double>(x[i]), 2);
        }
        EXPECT_LE(std::sqrt(error / energy), bound) << type << (anchored ? " anchored" : "");
      }
    }
  }
}

TEST(Codecs, AnyBytesDecode) {
  std::mt19937 random(5);
  for (const Codec& codec : codecs()) {
    std::vector<uint8_t> blocks(static_cast<size_t>(codec.bytes * 7));
    for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random());
    std::vector<float> out(static_cast<size_t>(codec.block * 7) + 1, 7.0f);
    codec.decode(blocks.data(), codec.block * 7, out.data());
    EXPECT_EQ(out.back(), 7.0f) << codec.name;
  }
}

TEST(Codecs, RowsDoNotDependOnThreads) {
  const int64_t rows = 700, columns = 512;
  const auto x = random_row(rows * columns, 8, 1), w = random_importance(columns, 9, 1);
  ThreadPool pool(3);
  for (const char* type : {"Q4_0", "Q6_K", "IQ2_XXS"}) {
    const Codec& codec = *find_codec(type);
    std::vector<uint8_t> one(static_cast<size_t>(rows * codec.row_bytes(columns))), three(one.size());
    const EncodeRowsOptions options = {.importance = w.data(), .level = detected_cpu_level()};
    EncodeRowsOptions threads = options;
    threads.pool = &pool;
    encode_rows(codec, x.data(), rows, columns, options, one.data(), "x");
    encode_rows(codec, x.data(), rows, columns, threads, three.data(), "x");
    EXPECT_EQ(one, three) << type;
    std::vector<float> a(x.size()), b(x.size());
    decode_rows(codec, one.data(), rows, columns, nullptr, a.data());
    decode_rows(codec, one.data(), rows, columns, &pool, b.data());
    EXPECT_EQ(a, b) << type;
  }
}

// What encode_rows() throws for these options; `change` spoils the weights or the importance.
template <class Change>
std::string refusal(const char* type, bool with_importance, ErrorKind kind, const Change& change,
                    int64_t columns = 512) {
  std::vector<float> x(static_cast<size_t>(2 * columns), 0.25f), w(static_cast<size_t>(columns), 1.0f);
  change(x, w);
  const Codec& codec = *find_codec(type);
  std::vector<uint8_t> out(static_cast<size_t>(2 * columns * 4));
  try {
    encode_rows(codec, x.data(), 2, columns, {.importance = with_importance ? w.data() : nullptr}, out.data(),
                "blk.0.attn_q.weight");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find("blk.0.attn_q.weight"), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "expected an error";
  return {};
}

TEST(Codecs, WhatCannotBeEncodedIsRefusedWithItsPlace) {
  const auto nothing = [](auto&, auto&) {};
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(refusal("IQ2_XXS", false, ErrorKind::invalid_argument, nothing), "needs an importance matrix");
  contains(refusal("Q4_K", false, ErrorKind::invalid_argument, nothing, 128),
           "multiple of 256 weights, found 128");
  for (const float bad : {kNan, kInf, -kInf}) {
    for (const char* type : {"F16", "Q8_0", "Q4_K", "IQ2_XXS"}) {
      contains(refusal(type, true, ErrorKind::numerical, [&](auto& x, auto&) { x[512 + 300] = bad; }),
               "weight [1, 300] is");
    }
  }
  for (const float bad : {kNan, kInf, -1.0f})
    contains(refusal("IQ2_XXS", true, ErrorKind::numerical, [&](auto&, auto& w) { w[17] = bad; }),
             "importance of column 17 is");
  for (const float large : {1e11f, 1e13f, 1e20f}) {
    for (const Codec& codec : codecs()) {
      if (codec.name == "F32" || codec.name == "BF16") continue;
      contains(refusal(std::string(codec.name).c_str(), true, ErrorKind::numerical,
                       [&](auto& x, auto&) { x[3] = large; }),
               str("which ", codec.name, " cannot hold"));
    }
  }
  contains(refusal("BF16", true, ErrorKind::numerical, [](auto& x, auto&) { x[3] = 3.4e38f; }),
           "weight [0, 3] is");
}

TEST(SmallBlocks, RoundAsTheyDo) {
  // d = 1: halves go away from zero.
  std::vector<float> x(32, 0.0f);
  x[0] = 127;
  x[1] = 0.5f;
  x[2] = -2.5f;
  const auto q8 = encoded(*find_codec("Q8_0"), CpuLevel::reference, x, nullptr);
  EXPECT_EQ(q8[0] | q8[1] << 8, f16_from_f32(1.0f));
  EXPECT_EQ(static_cast<int8_t>(q8[2]), 127);
  EXPECT_EQ(static_cast<int8_t>(q8[3]), 1);
  EXPECT_EQ(static_cast<int8_t>(q8[4]), -3);
  // A block of zeros stores -0.
  const auto q4 = encoded(*find_codec("Q4_0"), CpuLevel::reference, std::vector<float>(32, 0.0f), nullptr);
  EXPECT_EQ(q4[0] | q4[1] << 8, 0x8000);
  EXPECT_EQ(q4[2], 0x88);
  // A scale whose reciprocal overflows: no code is undefined.
  x.assign(32, 1e-44f);
  for (const Codec& codec : codecs()) {
    if (codec.block == 32) (void)encoded(codec, CpuLevel::reference, x, nullptr);
  }
}

TEST(UnsignedFit, NegativeCodesWrap) {
  // -0.4 of the largest 4 rounds to -0 (0), -1 to a byte of 255, which a better code replaces or not; the scale stays near 1.
  const float a[4] = {4, -1, 2, 3}, w[4] = {1, 1, 1, 1};
  uint8_t codes[4];
  const float scale = unsigned_fit(a, w, 4, 4, codes);
  EXPECT_EQ(codes[1], 255);
  EXPECT_NEAR(scale, 1, 0.1);
  const float zero[4] = {0, -1, 0, 0};
  EXPECT_EQ(unsigned_fit(zero, w, 4, 4, codes), 0);
}

TEST(Iq2Xxs, TablesAreWhatIsKnownOfThem) {
  const auto& tables = iq2_xxs::tables();
  int on_grid = 0, lists = 0, shortest = 1000, longest = 0, entries = 0;
  for (size_t u = 0; u < iq2_xxs::kCombinations; ++u) {
    if (tables.point[u] >= 0) {
      ++on_grid;
      continue;
    }
    const int count = tables.neighbours[u].count;
    ++lists;
    entries += count;
    shortest = std::min(shortest, count);
    longest = std::max(longest, count);
    EXPECT_EQ(tables.neighbours[u].first % 8, 0u);
  }
  EXPECT_EQ(on_grid, 256);
  EXPECT_EQ(lists, 6305);
  EXPECT_EQ(entries, 113157);
  EXPECT_EQ(shortest, 2);
  EXPECT_EQ(longest, 150);
  for (const auto& levels : tables.levels) {
    int ones = 0;
    for (const uint8_t level : levels) ones += level == 1;
    EXPECT_EQ(ones % 2, 0);
  }
  for (unsigned code = 0; code < 128; ++code) {
    EXPECT_EQ(std::popcount(iq2_xxs::all_signs(code)) % 2, 0);
    EXPECT_EQ(iq2_xxs::all_signs(code) & 127u, code);
  }
}

TEST(Iq2Xxs, ImportanceMovesTheErrorWhereItMattersLess) {
  const Codec& codec = *find_codec("IQ2_XXS");
  const int64_t rows = 16, n = 512;
  const auto x = random_row(rows * n, 21, 0), w = random_importance(n, 22, 1);
  const auto weighted_error = [&](bool anchored, const std::vector<float>& importance) {
    std::vector<uint8_t> blocks(static_cast<size_t>(rows * codec.row_bytes(n)));
    encode_rows(codec, x.data(), rows, n, {.importance = importance.data(), .anchored = anchored},
                blocks.data(), "x");
    std::vector<float> y(x.size());
    decode_rows(codec, blocks.data(), rows, n, nullptr, y.data());
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i)
      error +=
          static_cast<double>(w[i % static_cast<size_t>(n)]) * std::pow(static_cast<double>(y[i]) - x[i], 2);
    return error;
  };
  const std::vector<float> ones(static_cast<size_t>(n), 1.0f);
  for (const bool anchored : {false, true})
    EXPECT_LT(weighted_error(anchored, w), 0.7 * weighted_error(anchored, ones)) << anchored;
}

}  // namespace
}  // namespace gramian
