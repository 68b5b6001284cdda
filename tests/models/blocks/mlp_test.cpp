// Gated MLPs against formulas in double.
#include "models/blocks/mlp.h"

#include <gtest/gtest.h>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::TinyModel;

TEST(Activation, NamesOfOtherLibraries) {
  const auto named = [](const std::string& name) {
    const nlohmann::ordered_json json{{"hidden_act", name}};
    return read_activation({json, "config.json"});
  };
  EXPECT_EQ(named("silu"), Activation::silu);
  EXPECT_EQ(named("swish"), Activation::silu);
  EXPECT_EQ(named("gelu"), Activation::gelu);
  EXPECT_EQ(named("gelu_new"), Activation::gelu_tanh);
  EXPECT_EQ(named("gelu_pytorch_tanh"), Activation::gelu_tanh);
  EXPECT_THROW(named("relu"), Error);
}

class GatedMlpTest : public testing::Test {
 protected:
  GatedMlpTest() {
    tiny_.tensors = {{"m.gate_proj.weight", random_normal({kInner, kHidden}, 1)},
                     {"m.up_proj.weight", random_normal({kInner, kHidden}, 2)},
                     {"m.down_proj.weight", random_normal({kHidden, kInner}, 3)}};
    x_ = random_normal({20, kHidden}, 4).mul(2);
  }
  at::Tensor output(const MlpSpec& spec) {
    const Weights weights(std::make_shared<const Checkpoint>(tiny_.save()), at::kFloat, {});
    GatedMlp mlp(weights, "m.", spec);
    return run(mlp.forward(x_));
  }
  at::Tensor part(const std::string& name) const {
    return x_.to(at::kDouble).matmul(tiny_.tensors.at("m." + name + ".weight").to(at::kDouble).t());
  }
  static constexpr int64_t kHidden = 8, kInner = 6;
  const MlpSpec spec_{.hidden = kHidden, .intermediate = kInner};
  TinyModel tiny_;
  at::Tensor x_;
};

TEST_F(GatedMlpTest, GateAndUpAsOneModuleGiveTheSame) {
  const at::Tensor apart = output(spec_);
  tiny_.tensors["m.gate_up_proj.weight"] =
      tensor::cat({tiny_.tensors.at("m.gate_proj.weight"), tiny_.tensors.at("m.up_proj.weight")}, 0);
  tiny_.tensors.erase("m.gate_proj.weight");
  tiny_.tensors.erase("m.up_proj.weight");
  MlpSpec spec = spec_;
  spec.fused = true;
  EXPECT_LT(max_difference(output(spec), apart), 1e-4);
  EXPECT_EQ(gated_mlp_modules("m.", spec), ModuleTree({{"m.gate_up_proj"}, {"m.down_proj"}}));
}

TEST_F(GatedMlpTest, ClampedAndShifted) {
  MlpSpec spec = spec_;
  spec.limit = 1.5;
  spec.gate_slope = 1.7;
  spec.up_offset = 1;
  const at::Tensor gate = part("gate_proj").clamp_max(1.5), up = part("up_proj").clamp(-1.5, 1.5);
  const at::Tensor expected = gate.mul(gate.mul(1.7).sigmoid())
                                  .mul(up.add(1))
                                  .matmul(tiny_.tensors.at("m.down_proj.weight").to(at::kDouble).t());
  EXPECT_LT(max_difference(output(spec), expected), 1e-5);
  for (double MlpSpec::* setting : {&MlpSpec::limit, &MlpSpec::gate_slope, &MlpSpec::up_offset}) {
    MlpSpec without = spec;
    without.*setting = spec_.*setting;
    EXPECT_GT(max_difference(output(without), expected), 0.1);
  }
}

TEST_F(GatedMlpTest, ModulesOfOtherNames) {
  const at::Tensor expected = output(spec_);
  MlpSpec spec = spec_;
  spec.gate = "w1";
  spec.up = "w3";
  spec.down = "w2";
  for (const auto& [from, to] : {std::pair("gate_proj", "w1"), {"up_proj", "w3"}, {"down_proj", "w2"}}) {
    auto node = tiny_.tensors.extract(str("m.", from, ".weight"));
    tiny_.tensors[str("m.", to, ".weight")] = node.mapped();
  }
  EXPECT_TRUE(output(spec).equal(expected));
}

}  // namespace
}  // namespace gramian
