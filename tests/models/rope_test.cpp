#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

#include "base/error.h"
#include "support/files.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;

RopeSpec read(const std::string& text, int64_t head_dim = 8) {
  const Json json = Json::parse(text);
  return read_rope({json, "config.json"}, head_dim);
}

void expect_frequencies(const RopeSpec& spec, int64_t length, const std::vector<double>& expected) {
  const std::vector<float> found = rope_frequencies(spec, length);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t j = 0; j < expected.size(); ++j) EXPECT_NEAR(found[j] / expected[j], 1, 2e-7) << j;
}

TEST(RopeFrequencies, DefaultIsAGeometricSeries) {
  expect_frequencies(read("{}"), 5, {1, 0.1, 0.01, 0.001});
  expect_frequencies(read(R"({"rope_theta": 16})", 4), 5, {1, 0.25});
  expect_frequencies(read(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 16}})", 4), 5,
                     {1, 0.25});
  expect_frequencies(read(R"({"rope_scaling": null, "rope_parameters": null, "rope_theta": 16})", 4), 5,
                     {1, 0.25});
}

TEST(RopeFrequencies, LinearDivides) {
  for (const char* text :
       {R"({"rope_scaling": {"type": "linear", "factor": 4}})",
        R"({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000}})"}) {
    expect_frequencies(read(text), 5, {0.25, 0.025, 0.0025, 0.00025});
  }
}

TEST(RopeFrequencies, DynamicStretchesTheBaseBeyondTheTrainedLength) {
  const RopeSpec spec =
      read(R"({"max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 3}})");
  expect_frequencies(spec, 16, {1, 0.1, 0.01, 0.001});
  // 24 positions: the base grows by (3 · 24/16 - 2)^(8/6).
  const double base = 1e4 * std::pow(2.5, 8.0 / 6.0);
  expect_frequencies(spec, 24, {1, std::pow(base, -0.25), std::pow(base, -0.5), std::pow(base, -0.75)});
}

TEST(RopeFrequencies, Llama3KeepsShortWavesAndDividesLongOnes) {
  // Frequencies 1, 1/4, 1/16, 1/64: waves of 2π, 8π, 32π, 128π positions; 151 (48π) over 4 and over 1 are
  // the bounds.
  const RopeSpec spec = read(str(R"({"rope_theta": 256, "rope_scaling": {"rope_type": "llama3", "factor": 8,
      "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 151}})"));
  // 151 / (32π) lies between the bounds.
  const double smooth = (151 / (32 * std::numbers::pi) - 1) / 3;
  expect_frequencies(spec, 5, {1, 0.25, (1 - smooth) / 16 / 8 + smooth / 16, 1.0 / 64 / 8});
}

TEST(RopeFrequencies, YarnBlendsBetweenTwoDimensions) {
  // d = 8, base 100: the dimension that turns r times in 64 positions is 4 · log_100(64 / 2πr).
  const std::string settings = R"("rope_type": "yarn", "rope_theta": 100, "factor": 4, "beta_fast": 4,
                                  "original_max_position_embeddings": 64)";
  const auto dimension = [](double turns) {
    return 4 * std::log(64 / (2 * std::numbers::pi * turns)) / std::log(100.0);
  };
  const double low = dimension(4), high = dimension(1);
  ASSERT_TRUE(0 < low && low < 1 && 2 < high && high < 3);
  const auto blend = [&](double first, double last) {
    std::vector<double> expected;
    for (int j = 0; j < 4; ++j) {
      const double ramp = std::min(std::max((j - first) / (last - first), 0.0), 1.0);
      const double plain = std::pow(100.0, -j / 4.0);
      expected.push_back(ramp * plain / 4 + (1 - ramp) * plain);
    }
    return expected;
  };
  expect_frequencies(read("{\"rope_parameters\": {" + settings + "}}"), 5, blend(0, 3));
  expect_frequencies(read("{\"rope_parameters\": {" + settings + ", \"truncate\": false}}"), 5,
                     blend(low, high));
}

TEST(RopeFrequencies, YarnScalesCosAndSin) {
  const auto factor = [](const std::string& more) {
    return read(R"({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16)" +
                more + "}}")
        .attention_factor;
  };
  const double temperature = 0.1 * std::log(4.0) + 1;
  EXPECT_DOUBLE_EQ(factor(""), temperature);
  EXPECT_DOUBLE_EQ(factor(R"(, "mscale": 0.7)"), temperature);
  EXPECT_DOUBLE_EQ(factor(R"(, "mscale": 0.7, "mscale_all_dim": 0)"), temperature);
  EXPECT_DOUBLE_EQ(factor(R"(, "mscale": 0.7, "mscale_all_dim": 1.3)"),
                   (0.07 * std::log(4.0) + 1) / (0.13 * std::log(4.0) + 1));
  EXPECT_DOUBLE_EQ(factor(R"(, "mscale": 0.7, "mscale_all_dim": 1.3, "attention_factor": 0.5)"), 0.5);
  EXPECT_DOUBLE_EQ(factor(R"(, "attention_factor": null)"), temperature);
}

TEST(RopeFrequencies, YarnTakesTheRatioOfLengthsForAMissingFactor) {
  const RopeSpec spec =
      read(R"({"max_position_embeddings": 64, "rope_parameters": {"rope_type": "yarn", "factor": null,
                                 "original_max_position_embeddings": 16}})");
  EXPECT_EQ(spec.factor, 4);
  EXPECT_DOUBLE_EQ(spec.attention_factor, 0.1 * std::log(4.0) + 1);
}

TEST(RopeFrequencies, LongRopeHasAShortAndALongList) {
  const RopeSpec spec =
      read(R"({"max_position_embeddings": 64, "original_max_position_embeddings": 16, "rope_scaling":
      {"type": "longrope", "short_factor": [1, 2, 3, 4], "long_factor": [5, 6, 7, 8]}})");
  expect_frequencies(spec, 16, {1, 0.1 / 2, 0.01 / 3, 0.001 / 4});
  expect_frequencies(spec, 17, {1.0 / 5, 0.1 / 6, 0.01 / 7, 0.001 / 8});
  EXPECT_DOUBLE_EQ(spec.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(16.0)));
}

TEST(RopeFrequencies, OriginalLengthOnTopOverrulesTheNestedOne) {
  const RopeSpec spec = read(R"({"original_max_position_embeddings": 40, "rope_parameters":
      {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 16}})");
  EXPECT_EQ(spec.original_max_positions, 40);
}

TEST(RopeFrequencies, ScalingOverrulesParameters) {
  const RopeSpec spec = read(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 16},
                                 "rope_scaling": {"rope_type": "linear", "factor": 2}})");
  EXPECT_EQ(spec.type, "linear");
  EXPECT_EQ(read(R"({"rope_parameters": {}, "rope_scaling": {"type": "linear", "factor": 2}})").type,
            "linear");
  EXPECT_EQ(read(R"({"rope_parameters": {"rope_type": "linear", "factor": 2}, "rope_scaling": {}})").type,
            "linear");
}

TEST(ReadRope, RefusesWhatItCannotHonour) {
  EXPECT_EQ(error_of([] { read(R"({"rope_scaling": {"type": "spiral", "factor": 2}})"); }).kind(),
            ErrorKind::unsupported);
  for (
      const char* text : {
          R"({"rope_theta": 0})",
          R"({"rope_theta": "big"})",
          R"({"rope_scaling": []})",
          R"({"rope_scaling": {"type": "linear"}})",
          R"({"rope_scaling": {"type": "linear", "factor": -1}})",
          R"({"rope_scaling": {"type": "dynamic"}})",
          R"({"rope_scaling": {"type": 3}})",
          R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1}})",
          R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
          R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1]}})",
          R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1], "long_factor": [1, 1, 1, 1]}})",
          R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 0], "long_factor": [1, 1, 1, 1]}})",
          R"({"partial_rotary_factor": 0})",
          R"({"partial_rotary_factor": 1.5})",
          R"({"partial_rotary_factor": 0.4})",
      }) {
    const Error error = error_of([&] { read(text); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << text;
    EXPECT_NE(std::string(error.what()).find("config.json"), std::string::npos) << error.what();
  }
}

TEST(ReadRope, AnOddHeadIsBlamedOnItsOwnKey) {
  const auto blamed = [](const std::string& text) {
    const std::string what = error_of([&] { read(text, 7); }).what();
    return what.substr(what.find('\''), what.find(' ', what.find('\'')) - what.find('\''));
  };
  EXPECT_EQ(blamed(R"({"head_dim": 7})"), "'head_dim'");
  EXPECT_EQ(blamed("{}"), "'num_attention_heads'");
  EXPECT_EQ(blamed(R"({"head_dim": 7, "partial_rotary_factor": 0.8})"), "'partial_rotary_factor'");
}

TEST(RopeTable, HoldsAnglesOfEveryPosition) {
  RopeSpec spec = read(R"({"rope_theta": 16})", 4);
  spec.attention_factor = 2;
  const RopeTable table = rope_table(spec, 3);
  ASSERT_EQ(table.cos.sizes(), at::IntArrayRef({3, 2}));
  const double frequency[2] = {1, 0.25};
  for (int64_t p = 0; p < 3; ++p) {
    for (int64_t j = 0; j < 2; ++j) {
      EXPECT_NEAR(table.cos[p][j].item<double>(), 2 * std::cos(static_cast<double>(p) * frequency[j]), 1e-6);
      EXPECT_NEAR(table.sin[p][j].item<double>(), 2 * std::sin(static_cast<double>(p) * frequency[j]), 1e-6);
    }
  }
}

TEST(ApplyRope, TurnsPairsOfHalvesAndLeavesTheRest) {
  const RopeSpec spec = read(R"({"rope_theta": 16, "partial_rotary_factor": 0.5})");
  ASSERT_EQ(spec.rotary_dim, 4);
  const RopeTable table = rope_table(spec, 3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = tensor::arange(2 * 3 * 8, at::kFloat).reshape({1, 2, 3, 8}).sub(20).to(type);
    const at::Tensor y = apply_rope(x, table);
    EXPECT_EQ(y.scalar_type(), type);
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t p = 0; p < 3; ++p) {
        const auto in = [&](int64_t i) { return x[0][head][p][i].item<double>(); };
        const auto out = [&](int64_t i) { return y[0][head][p][i].item<double>(); };
        for (int64_t j = 0; j < 2; ++j) {
          const double angle = static_cast<double>(p) * (j == 0 ? 1.0 : 0.25);
          const double bound = type == at::kFloat ? 1e-5 : 0.2;
          EXPECT_NEAR(out(j), in(j)*std::cos(angle) - in(j + 2) * std::sin(angle), bound);
          EXPECT_NEAR(out(j + 2), in(j + 2) * std::cos(angle) + in(j)*std::sin(angle), bound);
        }
        for (int64_t j = 4; j < 8; ++j) EXPECT_EQ(out(j), in(j));
      }
    }
  }
}

TEST(ApplyRope, PairsAreHalvesInAnotherOrder) {
  RopeSpec spec = read(R"({"rope_theta": 16, "partial_rotary_factor": 0.5})");
  const at::Tensor x = tensor::arange(2 * 3 * 8, at::kFloat).reshape({1, 2, 3, 8}).sub(20);
  const auto reordered = [&](const at::Tensor& heads, const std::vector<int64_t>& order) {
    return heads.index_select(-1, tensor::wrap(order.data(), {8}, at::kLong, nullptr));
  };
  const at::Tensor halves = apply_rope(reordered(x, {0, 2, 1, 3, 4, 5, 6, 7}), rope_table(spec, 3));
  spec.pairs = true;
  EXPECT_TRUE(reordered(halves, {0, 2, 1, 3, 4, 5, 6, 7}).equal(apply_rope(x, rope_table(spec, 3))));
}

TEST(ReadRope, TheFactorOfAllDimensionsSharpensScores) {
  EXPECT_EQ(read(R"({"rope_theta": 16})").mscale_all, 1.0);
  const char* yarn = R"({"rope_scaling": {"type": "yarn", "factor": 4, "mscale": 0.5, "mscale_all_dim": 0.7,
                         "original_max_position_embeddings": 16}})";
  EXPECT_NEAR(read(yarn).mscale_all, 0.1 * 0.7 * std::log(4.0) + 1, 1e-12);
}

}  // namespace
}  // namespace gramian
