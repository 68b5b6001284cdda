#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"
#include "support/files.h"

namespace gramian {
namespace {

using testing_support::error_of;

const std::vector<float> kLogits{1.0f, -0.5f, 2.0f, 0.0f, 1.5f, -2.0f, 0.7f, 1.0f};

// The definition, one step after the other, on probabilities.
std::vector<double> expected(const std::vector<float>& logits, const SamplerOptions& options) {
  std::vector<double> p;
  p.reserve(logits.size());
  for (const float logit : logits) p.push_back(std::exp(logit / options.temperature));
  const auto normalize = [&] {
    double sum = 0;
    for (const double x : p) sum += x;
    for (double& x : p) x /= sum;
  };
  std::vector<size_t> order(p.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  if (options.top_k > 0) {
    const double smallest = p[order[static_cast<size_t>(options.top_k) - 1]];
    for (double& x : p) x = x < smallest ? 0 : x;
  }
  normalize();
  double before = 0;
  for (const size_t i : order) {
    const double mass = p[i];
    if (before >= options.top_p && i != order[0]) p[i] = 0;
    before += mass;
  }
  normalize();
  return p;
}

std::vector<int64_t> draws(const SamplerOptions& options, int count,
                           const std::vector<float>& logits = kLogits) {
  Sampler sampler(options);
  std::vector<int64_t> ids;
  ids.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) ids.push_back(sampler(logits, {}));
  return ids;
}

// Pearson's statistic; draws of impossible tokens make it infinite. Seven degrees of freedom or fewer: 24.3 is exceeded by
// chance once in a thousand times.
constexpr double kChiSquareMax = 24.3;
double chi_square(const std::vector<int64_t>& ids, const std::vector<double>& probabilities) {
  std::vector<double> counts(probabilities.size());
  for (const int64_t id : ids) ++counts.at(static_cast<size_t>(id));
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double mean = probabilities[i] * static_cast<double>(ids.size());
    if (mean == 0 && counts[i] > 0) return std::numeric_limits<double>::infinity();
    if (mean > 0) sum += (counts[i] - mean) * (counts[i] - mean) / mean;
  }
  return sum;
}

TEST(SamplerTest, DrawsFollowTheExactProbabilities) {
  constexpr int kDraws = 20000;
  const std::vector<SamplerOptions> all{{.temperature = 1.0},
                                        {.temperature = 0.6},
                                        {.temperature = 1.7},
                                        {.temperature = 1.0, .top_k = 3},
                                        {.temperature = 0.8, .top_p = 0.7},
                                        {.temperature = 1.3, .top_k = 5, .top_p = 0.8}};
  for (size_t i = 0; i < all.size(); ++i) {
    SamplerOptions options = all[i];
    options.seed = 17 + i;
    const std::vector<int64_t> ids = draws(options, kDraws);
    EXPECT_LT(chi_square(ids, expected(kLogits, options)), kChiSquareMax) << describe(options);
    // Every setting counts: the draws do not follow another one's probabilities.
    for (size_t j = 0; j < all.size(); ++j) {
      if (j == i) continue;
      EXPECT_GT(chi_square(ids, expected(kLogits, all[j])), kChiSquareMax) << i << " against " << j;
    }
  }
}

TEST(SamplerTest, GreedyTakesTheFirstOfTheLargest) {
  EXPECT_EQ(Sampler({})(kLogits, {}), 2);
  const std::vector<float> equal{-1.0f, 3.0f, 3.0f};
  EXPECT_EQ(Sampler({})(equal, {}), 1);
  EXPECT_EQ(Sampler({.temperature = 1.0, .top_k = 1})(kLogits, {}), 2);
  EXPECT_EQ(Sampler({.temperature = 1.0, .top_p = 0.0})(kLogits, {}), 2);
  EXPECT_EQ(Sampler({.temperature = 1e-30})(kLogits, {}), 2);
  EXPECT_EQ(Sampler({})(std::vector<float>{-7.0f}, {}), 0);
}

TEST(SamplerTest, TopKKeepsWhatEqualsTheSmallestKept) {
  // Logits 2, 1.5, then 1 twice: three asked for, four kept.
  std::map<int64_t, int> counts;
  for (const int64_t id : draws({.temperature = 1.0, .top_k = 3}, 500)) ++counts[id];
  EXPECT_EQ(counts.size(), 4u);
  EXPECT_TRUE(counts.contains(0) && counts.contains(7) && counts.contains(2) && counts.contains(4));
  EXPECT_EQ(draws({.temperature = 1.0, .top_k = 100}, 50), draws({.temperature = 1.0}, 50));
}

TEST(SamplerTest, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 1/2, 1/4, 1/8, 1/8, exact in binary.
  const std::vector<float> logits{std::log(0.125f), std::log(0.5f), std::log(0.25f), std::log(0.125f)};
  const auto kept = [&](double top_p) {
    std::map<int64_t, int> counts;
    for (const int64_t id : draws({.temperature = 1.0, .top_p = top_p}, 300, logits)) ++counts[id];
    return counts.size();
  };
  EXPECT_EQ(kept(0.49), 1u);
  EXPECT_EQ(kept(0.51), 2u);
  EXPECT_EQ(kept(0.74), 2u);
  EXPECT_EQ(kept(0.76), 3u);
  EXPECT_EQ(kept(0.99), 4u);
}

TEST(SamplerTest, RepetitionPenaltyCountsATokenOnce) {
  const std::vector<int64_t> seen{2, 2, 2};
  // 2.0 / 1.3 is still the largest, 2.0 / 1.4 is below 1.5; 2.0 / 1.3 / 1.3 would be.
  EXPECT_EQ(Sampler({.repetition_penalty = 1.3})(kLogits, seen), 2);
  EXPECT_EQ(Sampler({.repetition_penalty = 1.4})(kLogits, seen), 4);
  // A negative logit sinks.
  const std::vector<float> negative{-1.0f, -1.5f};
  EXPECT_EQ(Sampler({.repetition_penalty = 2.0})(negative, std::vector<int64_t>{0}), 1);
  EXPECT_EQ(Sampler({.repetition_penalty = 0.5})(negative, std::vector<int64_t>{1}), 1);
}

TEST(SamplerTest, TheSeedDecides) {
  const SamplerOptions one{.temperature = 1.0, .seed = 1};
  EXPECT_EQ(draws(one, 100), draws(one, 100));
  EXPECT_NE(draws(one, 100), draws({.temperature = 1.0, .seed = 2}, 100));
  // Fixed for every platform: the standard's generator, its upper 53 bits, candidates in the order of their ids.
  EXPECT_EQ(draws(one, 12), (std::vector<int64_t>{1, 1, 2, 0, 2, 7, 2, 0, 4, 4, 0, 4}));
}

TEST(SamplerTest, UnusableLogitsAreNamed) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = kLogits;
    logits[5] = bad;
    for (const double temperature : {0.0, 1.0}) {
      const Error error = error_of([&] { Sampler({.temperature = temperature})(logits, {}); });
      EXPECT_EQ(error.kind(), ErrorKind::numerical);
      EXPECT_NE(std::string(error.what()).find("token id 5"), std::string::npos) << error.what();
    }
  }
  const float low = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(error_of([&] { Sampler({})(std::vector<float>{low, low}, {}); }).kind(), ErrorKind::numerical);
  EXPECT_EQ(Sampler({.temperature = 1.0})(std::vector<float>{low, 0.0f, low}, {}), 1);
}

}  // namespace
}  // namespace gramian
