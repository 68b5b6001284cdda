// Models whose distribution is known: the layers add nothing, every embedding is the same vector of ones, and
// the head turns it into log-probabilities.
#include "eval/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::random_rows;
using testing_support::TinyModel;

class Known : public TinyModel {
 public:
  // `logits`: one per token id.
  explicit Known(const std::vector<double>& logits)
      : TinyModel({.hidden = 8,
                   .intermediate = 8,
                   .heads = 2,
                   .kv_heads = 1,
                   .layers = 1,
                   .vocab = static_cast<int64_t>(logits.size())}) {
    config["rms_norm_eps"] = 1e-12;
    tensors.at("model.embed_tokens.weight").fill_(1);
    tensors.at("model.norm.weight").fill_(1);
    tensors.at("model.layers.0.self_attn.o_proj.weight").zero_();
    tensors.at("model.layers.0.mlp.down_proj.weight").zero_();
    at::Tensor& head = tensors.at("lm_head.weight");
    head.zero_();
    for (size_t i = 0; i < logits.size(); ++i) head[static_cast<int64_t>(i)][0].fill_(logits[i]);
  }
  ResidentModel resident() { return {save(), {.dtype = "float32"}, std::make_shared<ThreadPool>(1)}; }
};

std::vector<double> logs(const std::vector<double>& probabilities, double shift = 0) {
  std::vector<double> result;
  for (const double p : probabilities) result.push_back(std::log(p) + shift);
  return result;
}

Log& quiet() {
  static Log log(LogLevel::quiet);
  return log;
}

TEST(Evaluate, PerplexityOfAUniformModelIsItsVocabulary) {
  for (const int64_t vocab : {2, 7, 50}) {
    ResidentModel model = Known(std::vector<double>(static_cast<size_t>(vocab), 0.3)).resident();
    const EvalResult result = evaluate(model, nullptr, random_rows({5, 9, 2}, vocab), {}, quiet());
    EXPECT_NEAR(result.perplexity / static_cast<double>(vocab), 1, 1e-6);
    EXPECT_EQ(result.tokens, 13);
    EXPECT_FALSE(result.kl.has_value());
  }
}

TEST(Evaluate, PerplexityIsTheGeometricMeanOverAllPredictedTokens) {
  const std::vector<double> p{0.5, 0.25, 0.125, 0.125};
  // Logits need not be normalized.
  ResidentModel model = Known(logs(p, 2.5)).resident();
  // The first token of a row is not predicted; rows of one token predict nothing.
  const std::vector<TokenRow> rows{{3, 0, 1}, {2}, {3, 3, 3, 0}};
  const double expected =
      std::exp(-(std::log(0.5) + std::log(0.25) + 2 * std::log(0.125) + std::log(0.5)) / 5);
  for (const int64_t batch : {1, 2, 8}) {
    // A chunk of one position at a time, and all at once.
    for (const int64_t bytes : {int64_t{1}, int64_t{16}, int64_t{1} << 20}) {
      const EvalResult result =
          evaluate(model, nullptr, rows, {.batch = batch, .logit_bytes_max = bytes}, quiet());
      EXPECT_NEAR(result.perplexity, expected, 1e-5);
      EXPECT_EQ(result.tokens, 5);
    }
  }
}

TEST(Evaluate, AModelEqualsItself) {
  TinyModel tiny;
  const auto folder = tiny.save();
  const auto pool = std::make_shared<ThreadPool>(1);
  ResidentModel model(folder, {.dtype = "float32"}, pool), again(folder, {.dtype = "float32"}, pool);
  const EvalResult result = evaluate(model, &again, random_rows({6, 11, 3}, 50), {}, quiet());
  ASSERT_TRUE(result.kl.has_value());
  EXPECT_EQ(result.kl->mean, 0);
  EXPECT_EQ(result.kl->low, 0);
  EXPECT_EQ(result.kl->high, 0);
  EXPECT_EQ(result.top1_agreement, 1);
}

TEST(Evaluate, DivergenceOfTwoKnownModels) {
  const std::vector<double> p{0.5, 0.25, 0.125, 0.125}, q{0.125, 0.5, 0.25, 0.125}, r{0.4, 0.3, 0.2, 0.1};
  const auto divergence = [](const std::vector<double>& from, const std::vector<double>& to) {
    double sum = 0;
    for (size_t i = 0; i < from.size(); ++i) sum += from[i] * std::log(from[i] / to[i]);
    return sum;
  };
  const auto rows = random_rows({4, 9}, 4);
  ResidentModel model_p = Known(logs(p)).resident(), model_q = Known(logs(q, -1)).resident(),
                model_r = Known(logs(r, 3)).resident();
  // KL(reference || model), not the other way round.
  const EvalResult pq = evaluate(model_q, &model_p, rows, {}, quiet());
  EXPECT_NEAR(pq.kl->mean, divergence(p, q), 1e-6);
  EXPECT_EQ(pq.top1_agreement, 0);
  const EvalResult qp = evaluate(model_p, &model_q, rows, {}, quiet());
  EXPECT_NEAR(qp.kl->mean, divergence(q, p), 1e-6);
  const EvalResult pr = evaluate(model_r, &model_p, rows, {}, quiet());
  EXPECT_NEAR(pr.kl->mean, divergence(p, r), 1e-6);
  EXPECT_EQ(pr.top1_agreement, 1);
  ASSERT_GT(std::abs(divergence(p, q) - divergence(q, p)), 0.05);
  // Every position has the same divergence: the interval has no width.
  EXPECT_NEAR(pq.kl->high - pq.kl->low, 0, 1e-5);
}

// Every token but the first once, in the first window that it is in: as if the row began where that window does.
TEST(Evaluate, WindowsSlideOverARow) {
  TinyModel tiny;
  ResidentModel model(tiny.save(), {.dtype = "float32"}, std::make_shared<ThreadPool>(1));
  for (const auto& [length, window, stride] :
       {std::tuple(11, 4, 2), std::tuple(11, 4, 1), std::tuple(11, 5, 3), std::tuple(6, 9, 2),
        std::tuple(9, 3, 3)}) {
    const TokenRow row = random_rows({length}, 50)[0];
    std::vector<TokenRow> alone;
    for (int64_t token = 1; token < length; ++token) {
      int64_t begin = 0;
      while (begin + window <= token) begin += stride;
      // The first token of a window that no other one reaches into has nothing before it.
      if (begin < token) alone.push_back({row.begin() + begin, row.begin() + token + 1});
    }
    const EvalResult expected = evaluate(model, nullptr, alone, {}, quiet());
    double sum = 0;
    for (const RowScore& score : expected.rows) sum += score.likelihood_at.back();
    for (const int64_t batch : {1, 3}) {
      const EvalOptions options{.batch = batch, .window = SlidingWindow{window, stride}};
      const EvalResult result = evaluate(model, nullptr, {row}, options, quiet());
      const auto count = static_cast<int64_t>(alone.size());
      EXPECT_EQ(result.tokens, count) << length << " " << window << " " << stride;
      EXPECT_NEAR(std::log(result.perplexity), sum / static_cast<double>(count), 1e-5);
      std::vector<float> found;
      for (const RowScore& score : result.rows)
        found.insert(found.end(), score.likelihood_at.begin(), score.likelihood_at.end());
      ASSERT_EQ(found.size(), alone.size());
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected.rows[i].likelihood_at.back(), 1e-4) << i;
    }
  }
}

TEST(Evaluate, ScoresByContext) {
  TinyModel tiny;
  const auto folder = tiny.save();
  const auto pool = std::make_shared<ThreadPool>(1);
  ResidentModel model(folder, {.dtype = "float32"}, pool), other(folder, {.dtype = "bfloat16"}, pool);
  const EvalResult result = evaluate(model, &other, random_rows({6, 11}, 50), {}, quiet());
  const std::vector<PositionScore> parts = result.by_position();
  ASSERT_EQ(parts.size(), 4U);
  const int64_t expected[][3] = {{1, 1, 2}, {2, 3, 4}, {4, 7, 2 + 4}, {8, 15, 3}};
  double likelihood = 0, kl = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].low, expected[i][0]);
    EXPECT_EQ(parts[i].high, expected[i][1]);
    EXPECT_EQ(parts[i].positions, expected[i][2]);
    likelihood += parts[i].negative_log_likelihood * static_cast<double>(parts[i].positions);
    kl += parts[i].kl * static_cast<double>(parts[i].positions);
  }
  EXPECT_NEAR(likelihood / 15, std::log(result.perplexity), 1e-6);
  EXPECT_NEAR(kl / 15, result.kl->mean, 1e-9);
  // The last part holds the last three positions of the longer row alone.
  const std::vector<float>& row = result.rows[1].likelihood_at;
  EXPECT_NEAR(parts[3].negative_log_likelihood, (row[7] + row[8] + row[9]) / 3, 1e-6);
}

TEST(Evaluate, RefusesWhatCannotBeScored) {
  ResidentModel four = Known({0, 0, 0, 0}).resident(), five = Known({0, 0, 0, 0, 0}).resident();
  EXPECT_EQ(error_of([&] { evaluate(four, nullptr, {{1}, {2}}, {}, quiet()); }).kind(),
            ErrorKind::invalid_argument);
  EXPECT_EQ(error_of([&] { evaluate(four, nullptr, {}, {}, quiet()); }).kind(), ErrorKind::invalid_argument);
  EXPECT_EQ(error_of([&] { evaluate(four, &five, {{1, 2}}, {}, quiet()); }).kind(),
            ErrorKind::invalid_argument);
  EXPECT_EQ(error_of([&] { evaluate(four, nullptr, {{1, 4}}, {}, quiet()); }).kind(),
            ErrorKind::invalid_argument);
  ResidentModel broken = Known({0, std::numeric_limits<double>::quiet_NaN(), 0}).resident();
  EXPECT_EQ(error_of([&] { evaluate(broken, nullptr, {{1, 2}}, {}, quiet()); }).kind(), ErrorKind::numerical);
}

}  // namespace
}  // namespace gramian
