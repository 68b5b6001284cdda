// Statistics of experts: of the rows sent to them, or of every token.
#include <gtest/gtest.h>

#include <map>

#include "pipeline/calibrator.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::random_rows;
using testing_support::TinyModel;

constexpr int64_t kExperts = 4, kInner = 24;

// A Qwen 2 MoE of two layers, each with a mixture and a shared expert.
struct TinyMixture : TinyModel {
  TinyMixture() {
    config.update({{"model_type", "qwen2_moe"},
                   {"qkv_bias", false},
                   {"num_experts", kExperts},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", kInner},
                   {"shared_expert_intermediate_size", 40}});
    for (int layer = 0; layer < 2; ++layer) {
      const std::string prefix = str("model.layers.", layer, ".mlp.");
      for (const char* name : {"gate_proj", "up_proj", "down_proj"})
        tensors.erase(str(prefix, name, ".weight"));
      tensors[prefix + "gate.weight"] = random_normal({kExperts, 32}, 300);
      tensors[prefix + "shared_expert_gate.weight"] = random_normal({1, 32}, 301);
      add_mlp(prefix + "shared_expert.", 40, 310);
      for (uint32_t e = 0; e < kExperts; ++e) add_mlp(str(prefix, "experts.", e, "."), kInner, 320 + 10 * e);
    }
  }
  void add_mlp(const std::string& prefix, int64_t inner, uint32_t seed) {
    tensors[prefix + "gate_proj.weight"] = random_normal({inner, 32}, seed).mul(0.2);
    tensors[prefix + "up_proj.weight"] = random_normal({inner, 32}, seed + 1).mul(0.2);
    tensors[prefix + "down_proj.weight"] = random_normal({32, inner}, seed + 2).mul(0.2);
  }
};

// First module of each pause -> its statistics; nothing is replaced.
std::map<std::string, PauseStatistics> calibrate(const Model& model, const CalibratorOptions& options) {
  std::map<std::string, PauseStatistics> seen;
  Calibrator calibrator(model, random_rows({9, 9, 4, 1, 13, 4}, 50), options);
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    const auto layer = model.load_layer(i);
    calibrator.run_layer(i, *layer, [&](const PauseStatistics& statistics) {
      seen[statistics.modules[0]->name] = statistics;
    });
  }
  return seen;
}

TEST(CalibratorExperts, AllTokensOrThoseSent) {
  TinyMixture tiny;
  const Model model = tiny.open();
  for (const Sequential order : {Sequential::subset, Sequential::none}) {
    const auto routed = calibrate(model, {.batch = 2, .sequential = order, .expert_wave = 3});
    const auto all =
        calibrate(model, {.batch = 2, .sequential = order, .expert_wave = 3, .all_experts = true});
    ASSERT_EQ(routed.size(), all.size());
    for (int layer = 0; layer < 2; ++layer) {
      const std::string mlp = str("model.layers.", layer, ".mlp.");
      // The shared expert reads what all experts do.
      const PauseStatistics& whole = all.at(mlp + "shared_expert.gate_proj");
      int64_t sent = 0;
      for (int64_t e = 0; e < kExperts; ++e) {
        const std::string expert = str(mlp, "experts.", e, ".");
        for (const char* name : {"gate_proj", "down_proj"}) {
          EXPECT_EQ(all.at(expert + name).tokens, whole.tokens);
          EXPECT_LT(routed.at(expert + name).tokens, whole.tokens);
          EXPECT_GT(max_difference(all.at(expert + name).hessian, routed.at(expert + name).hessian), 1e-3);
        }
        EXPECT_LT(max_difference(all.at(expert + "gate_proj").hessian, whole.hessian), 1e-5);
        sent += routed.at(expert + "gate_proj").tokens;
      }
      EXPECT_EQ(sent, 2 * whole.tokens);
      // What goes on is routed either way.
      for (const char* name : {"self_attn.q_proj", "self_attn.o_proj", "mlp.shared_expert.gate_proj"}) {
        const std::string module = str("model.layers.", layer, ".", name);
        EXPECT_LT(max_difference(all.at(module).hessian, routed.at(module).hessian), 1e-4) << module;
      }
    }
  }
}

}  // namespace
}  // namespace gramian
