// Routing rules against loops over tokens in double.
#include "models/blocks/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::random_normal;
using testing_support::TinyModel;

constexpr int64_t kExperts = 12, kHidden = 8, kTokens = 40;
using Values = std::vector<double>;

class RouterTest : public testing::Test {
 protected:
  RouterTest() {
    tiny_.tensors = {{"m.gate.weight", random_normal({kExperts, kHidden}, 1)},
                     {"m.gate.bias", random_normal({kExperts}, 2)},
                     {"m.gate.e_score_correction_bias", random_normal({kExperts}, 3).mul(0.3)}};
    x_ = random_normal({kTokens, kHidden}, 4);
  }

  Routing route(RouterSpec spec) {
    spec.experts = kExperts;
    const Weights weights(std::make_shared<const Checkpoint>(tiny_.save()), at::kFloat, {});
    return Router(weights, "m.", kHidden, spec).route(x_);
  }

  Values logits(int64_t token, bool bias) const {
    Values found;
    for (int64_t e = 0; e < kExperts; ++e) {
      double sum = bias ? tiny_.tensors.at("m.gate.bias")[e].item<double>() : 0;
      for (int64_t i = 0; i < kHidden; ++i)
        sum += x_[token][i].item<double>() * tiny_.tensors.at("m.gate.weight")[e][i].item<double>();
      found.push_back(sum);
    }
    return found;
  }

  // The routing of one token as weights by expert; 0 for those that it does not go to.
  static Values of_token(const Routing& routing, int64_t token) {
    Values found(kExperts, 0);
    for (int64_t k = 0; k < routing.experts.size(1); ++k) {
      const auto expert = static_cast<size_t>(routing.experts[token][k].item<int64_t>());
      found[expert] = routing.weights.defined() ? routing.weights[token][k].item<double>() : 1.0;
    }
    return found;
  }

  TinyModel tiny_;
  at::Tensor x_;
};

std::vector<size_t> largest(const Values& values, int64_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(static_cast<size_t>(count));
  return order;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Weights of the chosen, 0 elsewhere.
Values only(const Values& weights, const std::vector<size_t>& chosen) {
  Values found(weights.size(), 0);
  for (const size_t e : chosen) found[e] = weights[e];
  return found;
}

void divide_by_sum(Values& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& value : values) value /= sum;
}

void expect_near(const Values& found, const Values& expected, int64_t token) {
  for (size_t e = 0; e < expected.size(); ++e)
    EXPECT_NEAR(found[e], expected[e], 2e-6) << "token " << token << ", expert " << e;
}

TEST_F(RouterTest, Softmax) {
  for (const bool normed : {false, true}) {
    const Routing routing = route({.top_k = 3, .norm_top_k = normed});
    for (int64_t t = 0; t < kTokens; ++t) {
      Values probability = logits(t, false);
      for (double& value : probability) value = std::exp(value);
      divide_by_sum(probability);
      Values expected = only(probability, largest(probability, 3));
      if (normed) divide_by_sum(expected);
      expect_near(of_token(routing, t), expected, t);
    }
  }
}

TEST_F(RouterTest, SigmoidChoosesByCorrectedScoresWithinTheBestGroups) {
  for (const int64_t groups : {1, 3, 4}) {
    for (const bool normed : {false, true}) {
      const int64_t kept = groups == 1 ? 1 : 2, size = kExperts / groups;
      const Routing routing = route({.rule = RouterSpec::Rule::sigmoid,
                                     .top_k = 3,
                                     .norm_top_k = normed,
                                     .groups = groups,
                                     .top_groups = kept,
                                     .scale = 2.5});
      EXPECT_EQ(routing.weights.scalar_type(), at::kFloat);
      int64_t corrected = 0;
      for (int64_t t = 0; t < kTokens; ++t) {
        Values score = logits(t, false), choice;
        for (size_t e = 0; e < score.size(); ++e) {
          score[e] = sigmoid(score[e]);
          choice.push_back(
              score[e] +
              tiny_.tensors.at("m.gate.e_score_correction_bias")[static_cast<int64_t>(e)].item<double>());
        }
        Values group_score;
        for (int64_t g = 0; g < groups; ++g) {
          const Values members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
          const auto best = largest(members, 2);
          group_score.push_back(members[best[0]] + members[best[1]]);
        }
        const auto open = largest(group_score, kept);
        for (size_t e = 0; e < choice.size(); ++e) {
          if (std::find(open.begin(), open.end(), e / static_cast<size_t>(size)) == open.end())
            choice[e] = -1e9;
        }
        Values expected = only(score, largest(choice, 3));
        corrected += expected != only(score, largest(score, 3));
        if (normed) divide_by_sum(expected);
        for (double& value : expected) value *= 2.5;
        expect_near(of_token(routing, t), expected, t);
      }
      EXPECT_GT(corrected, 5) << "the correction chooses other experts";
    }
  }
}

TEST_F(RouterTest, SoftmaxOfTheLargestLogits) {
  const Routing routing = route({.rule = RouterSpec::Rule::softmax_of_top, .bias = true, .top_k = 4});
  for (int64_t t = 0; t < kTokens; ++t) {
    const Values logit = logits(t, true);
    Values expected(kExperts, 0);
    for (const size_t e : largest(logit, 4)) expected[e] = std::exp(logit[e]);
    divide_by_sum(expected);
    expect_near(of_token(routing, t), expected, t);
  }
}

TEST_F(RouterTest, ScaledInputs) {
  const Routing routing = route({.rule = RouterSpec::Rule::scaled_input, .top_k = 2});
  EXPECT_FALSE(routing.weights.defined());
  for (int64_t t = 0; t < kTokens; ++t) {
    const Values logit = logits(t, false);
    expect_near(of_token(routing, t), only(Values(kExperts, 1.0), largest(logit, 2)), t);
    for (int64_t e = 0; e < kExperts; ++e)
      EXPECT_NEAR(routing.input_scale[t][e].item<double>(), sigmoid(logit[static_cast<size_t>(e)]), 1e-6);
  }
}

// In bf16 the sigmoid rule takes its logits and weights in f32, the others in bf16.
TEST_F(RouterTest, Types) {
  x_ = x_.to(at::kBFloat16);
  tiny_.tensors["m.gate.weight"] = tiny_.tensors["m.gate.weight"].to(at::kBFloat16);
  const Weights weights(std::make_shared<const Checkpoint>(tiny_.save()), at::kBFloat16, {});
  const auto type = [&](RouterSpec::Rule rule) {
    const RouterSpec spec{.rule = rule, .experts = kExperts, .top_k = 2};
    return Router(weights, "m.", kHidden, spec).route(x_).weights.scalar_type();
  };
  EXPECT_EQ(type(RouterSpec::Rule::softmax), at::kBFloat16);
  EXPECT_EQ(type(RouterSpec::Rule::softmax_of_top), at::kBFloat16);
  EXPECT_EQ(type(RouterSpec::Rule::sigmoid), at::kFloat);
  const RouterSpec wide{.experts = kExperts, .top_k = 2, .wide_weights = true};
  EXPECT_EQ(Router(weights, "m.", kHidden, wide).route(x_).weights.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace gramian
