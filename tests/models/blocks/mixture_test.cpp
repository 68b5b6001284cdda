// Mixtures against sums over experts in double, and the ways in which experts are stored.
#include "models/blocks/mixture.h"

#include <gtest/gtest.h>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::TinyModel;

constexpr int64_t kExperts = 4, kHidden = 8, kInner = 6;

MixtureSpec mixture(bool bias) {
  MixtureSpec spec;
  spec.router = {.experts = kExperts, .top_k = 2, .norm_top_k = true};
  spec.expert = {.hidden = kHidden, .intermediate = kInner, .bias = bias};
  return spec;
}

class MixtureTest : public testing::Test {
 protected:
  MixtureTest() {
    tiny_.tensors = {{"m.gate.weight", random_normal({kExperts, kHidden}, 1)}};
    for (int64_t e = 0; e < kExperts; ++e)
      add_mlp(str("m.experts.", e, "."), kInner, static_cast<uint32_t>(10 * e));
    x_ = random_normal({30, kHidden}, 5);
  }

  void add_mlp(const std::string& prefix, int64_t inner, uint32_t seed) {
    const auto add = [&](const std::string& name, int64_t out, int64_t in) {
      tiny_.tensors[prefix + name + ".weight"] = random_normal({out, in}, seed + 100).mul(0.4);
      tiny_.tensors[prefix + name + ".bias"] = random_normal({out}, seed + 101);
      seed += 2;
    };
    add("gate_proj", inner, kHidden);
    add("up_proj", inner, kHidden);
    add("down_proj", kHidden, inner);
  }

  // Moves the experts into stacks.
  void stack(ExpertStack layout) {
    std::vector<at::Tensor> gate_up, gate_up_bias, down, down_bias;
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto take = [&](const std::string& name) {
        auto node = tiny_.tensors.extract(str("m.experts.", e, ".", name));
        return node.mapped();
      };
      const auto both = [&](const std::string& part) {
        const at::Tensor gate = take("gate_proj." + part), up = take("up_proj." + part);
        if (layout != ExpertStack::columns_paired) return tensor::cat({gate, up}, 0);
        return tensor::cat({gate.unsqueeze(1), up.unsqueeze(1)}, 1).flatten(0, 1);
      };
      gate_up.push_back(both("weight").unsqueeze(0));
      gate_up_bias.push_back(both("bias").unsqueeze(0));
      down.push_back(take("down_proj.weight").unsqueeze(0));
      down_bias.push_back(take("down_proj.bias").unsqueeze(0));
    }
    const auto put = [&](const std::string& name, const std::vector<at::Tensor>& parts, bool transpose) {
      at::Tensor all = tensor::cat(parts, 0);
      tiny_.tensors["m.experts." + name] = (transpose ? all.transpose(1, 2) : all).contiguous();
    };
    put("gate_up_proj", gate_up, layout != ExpertStack::rows);
    put("down_proj", down, layout != ExpertStack::rows);
    put("gate_up_proj_bias", gate_up_bias, false);
    put("down_proj_bias", down_bias, false);
  }

  at::Tensor output(const MixtureSpec& spec) {
    const Weights weights(std::make_shared<const Checkpoint>(tiny_.save()), at::kFloat, {});
    Mixture block(weights, "m.", spec);
    return run(block.forward(x_));
  }

  at::Tensor naive_mlp(const std::string& prefix, const at::Tensor& x, bool bias) const {
    const auto linear = [&](const at::Tensor& in, const std::string& name) {
      const at::Tensor out = in.matmul(tiny_.tensors.at(prefix + name + ".weight").to(at::kDouble).t());
      return bias ? out.add(tiny_.tensors.at(prefix + name + ".bias").to(at::kDouble)) : out;
    };
    const at::Tensor gate = linear(x, "gate_proj");
    return linear(gate.mul(gate.sigmoid()).mul(linear(x, "up_proj")), "down_proj");
  }

  TinyModel tiny_;
  at::Tensor x_;
};

TEST_F(MixtureTest, SumsTheChosenExperts) {
  const at::Tensor wide = x_.to(at::kDouble);
  const at::Tensor logits = wide.matmul(tiny_.tensors.at("m.gate.weight").to(at::kDouble).t());
  const auto [weights, chosen] = logits.softmax(-1).topk(2, -1);
  at::Tensor expected = tensor::zeros(wide.sizes(), at::kDouble);
  for (int64_t e = 0; e < kExperts; ++e) {
    const at::Tensor share = weights.mul(chosen.eq(e)).sum(-1, true).div(weights.sum(-1, true));
    expected.add_(naive_mlp(str("m.experts.", e, "."), wide, true).mul(share));
  }
  EXPECT_LT(max_difference(output(mixture(true)), expected), 1e-5);
}

TEST_F(MixtureTest, EveryStackGivesTheSameBits) {
  for (const bool bias : {false, true}) {
    for (const ExpertStack layout : {ExpertStack::rows, ExpertStack::columns, ExpertStack::columns_paired}) {
      const auto before = tiny_.tensors;
      MixtureSpec spec = mixture(bias);
      const at::Tensor apart = output(spec);
      stack(layout);
      spec.stack = layout;
      EXPECT_TRUE(apart.equal(output(spec))) << static_cast<int>(layout) << (bias ? ", biases" : "");
      tiny_.tensors = before;
    }
  }
}

TEST_F(MixtureTest, AStackOfAnotherShapeIsRefused) {
  stack(ExpertStack::columns);
  EXPECT_THROW(output(mixture(false)), Error);
  MixtureSpec spec = mixture(true);
  spec.stack = ExpertStack::columns;
  tiny_.tensors["m.experts.gate_up_proj_bias"] = random_normal({kExperts, kInner}, 1);
  EXPECT_THROW(output(spec), Error);
}

TEST_F(MixtureTest, AScaledInputIsScaledForEachExpertOnItsOwn) {
  MixtureSpec spec = mixture(false);
  spec.router = {.rule = RouterSpec::Rule::scaled_input, .experts = kExperts, .top_k = 2};
  const at::Tensor wide = x_.to(at::kDouble);
  const at::Tensor logits = wide.matmul(tiny_.tensors.at("m.gate.weight").to(at::kDouble).t());
  const at::Tensor chosen = std::get<1>(logits.topk(2, -1));
  at::Tensor expected = tensor::zeros(wide.sizes(), at::kDouble);
  for (int64_t e = 0; e < kExperts; ++e) {
    const at::Tensor input = wide.mul(logits.sigmoid().narrow(1, e, 1));
    const at::Tensor has = chosen.eq(e).sum(-1, true);
    expected.add_(naive_mlp(str("m.experts.", e, "."), input, false).mul(has));
  }
  EXPECT_LT(max_difference(output(spec), expected), 1e-5);
}

TEST_F(MixtureTest, TheSharedExpertIsAddedForEveryToken) {
  const at::Tensor routed = output(mixture(false));
  add_mlp("m.shared_expert.", 10, 500);
  tiny_.tensors["m.shared_expert_gate.weight"] = random_normal({1, kHidden}, 9);
  MixtureSpec spec = mixture(false);
  spec.shared = "shared_expert";
  spec.shared_expert = {.hidden = kHidden, .intermediate = 10};
  const at::Tensor wide = x_.to(at::kDouble);
  at::Tensor shared = naive_mlp("m.shared_expert.", wide, false);
  EXPECT_LT(max_difference(output(spec), shared.add(routed)), 1e-5);
  spec.shared_gate = true;
  shared =
      shared.mul(wide.matmul(tiny_.tensors.at("m.shared_expert_gate.weight").to(at::kDouble).t()).sigmoid());
  EXPECT_LT(max_difference(output(spec), shared.add(routed)), 1e-5);
}

TEST_F(MixtureTest, PausesAsTheModuleTreeSays) {
  add_mlp("m.shared_experts.", kInner, 500);
  MixtureSpec spec = mixture(false);
  spec.shared = "shared_experts";
  spec.shared_expert = spec.expert;
  const Weights weights(std::make_shared<const Checkpoint>(tiny_.save()), at::kFloat, {});
  Mixture block(weights, "m.", spec);
  Execution execution(block.forward(x_));
  ModuleTree seen;
  const auto add = [&](const std::vector<Linear*>& modules) {
    auto& group = seen.emplace_back();
    for (const Linear* linear : modules) group.push_back(linear->name);
  };
  while (Pause* pause = execution.advance()) {
    if (pause->experts == nullptr) add(pause->modules);
    for (int64_t e = 0; pause->experts != nullptr && e < kExperts; ++e) {
      const auto expert = pause->experts->open(e);
      for (const auto& group : expert->pauses()) add(group);
    }
    multiply(*pause);
  }
  EXPECT_EQ(seen, mixture_modules("m.", spec));
}

}  // namespace
}  // namespace gramian
