// Layers against plain formulas in double, and the independence of a row from the rest of its batch.
#include "models/blocks/layer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/blocks/attention.h"
#include "models/blocks/mlp.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::forward;
using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::random_rows;
using testing_support::TinyModel;

// One layer in double, head by head.
at::Tensor naive_layer(const TinyModel& tiny, const at::Tensor& hidden, int64_t heads, int64_t kv_heads) {
  const auto weight = [&](const std::string& name) {
    return tiny.tensors.at("model.layers.0." + name + ".weight").to(at::kDouble);
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return x.div(x.square().mean(-1, true).add(1e-6).sqrt()).mul(weight(name));
  };
  const int64_t length = hidden.size(0), dim = hidden.size(1) / heads;
  RopeSpec rope;
  rope.rotary_dim = dim;
  const RopeTable table = rope_table(rope, length);
  const auto turned = [&](const at::Tensor& x) {  // [length, dim]
    return apply_rope(x.unsqueeze(0).unsqueeze(0).to(at::kFloat), table)[0][0].to(at::kDouble);
  };
  const at::Tensor x = norm(hidden, "input_layernorm");
  const at::Tensor q = x.matmul(weight("self_attn.q_proj").t()), k = x.matmul(weight("self_attn.k_proj").t()),
                   v = x.matmul(weight("self_attn.v_proj").t());
  const at::Tensor mask = tensor::full({length, length}, 1.0, at::kDouble).tril();
  std::vector<at::Tensor> mixed;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t shared = h / (heads / kv_heads);
    const at::Tensor scores =
        turned(q.narrow(1, h * dim, dim)).matmul(turned(k.narrow(1, shared * dim, dim)).t());
    const at::Tensor weights = scores.div(std::sqrt(static_cast<double>(dim))).exp().mul(mask);
    mixed.push_back(weights.div(weights.sum(-1, true)).matmul(v.narrow(1, shared * dim, dim)));
  }
  const at::Tensor middle = hidden.add(tensor::cat(mixed, 1).matmul(weight("self_attn.o_proj").t()));
  const at::Tensor y = norm(middle, "post_attention_layernorm");
  const at::Tensor gate = y.matmul(weight("mlp.gate_proj").t());
  const at::Tensor product = gate.div(gate.neg().exp().add(1)).mul(y.matmul(weight("mlp.up_proj").t()));
  return middle.add(product.matmul(weight("mlp.down_proj").t()));
}

TEST(ResidualLayer, EqualsTheFormula) {
  TinyModel tiny({.layers = 1});
  const Model model = tiny.open();
  const auto rows = random_rows({11}, 50);
  const at::Tensor hidden = model.embed(model.pack_rows(rows));
  const auto layer = model.load_layer(0);
  const BatchContext context = model.context(rows);
  const at::Tensor found = run(layer->forward(hidden, context));
  EXPECT_LT(max_difference(found, naive_layer(tiny, hidden.to(at::kDouble), 4, 2)), 2e-5);
}

// The kind that a layer names counts; one that turns by nothing equals none.
TEST(Attention, TurnsByTheKindThatTheLayerNames) {
  TinyModel tiny({.layers = 1});
  const Weights weights(std::make_shared<const Checkpoint>(tiny.save()), at::kFloat, {});
  const Model model = tiny.open();
  const auto rows = random_rows({7, 3}, 50);
  const at::Tensor hidden = model.embed(model.pack_rows(rows));
  const RopeSpec plain{.rotary_dim = 8}, still{.type = "linear", .rotary_dim = 8, .factor = 1e30};
  const auto output = [&](std::optional<size_t> kind, const std::vector<RopeSpec>& ropes) {
    AttentionSpec spec = model.spec().attention[0];
    spec.rope = kind;
    ResidualLayer layer(weights, "model.layers.0.", spec.hidden, model.spec().norms,
                        std::make_unique<Attention>(weights, "model.layers.0.self_attn.", spec),
                        std::make_unique<GatedMlp>(weights, "model.layers.0.mlp.", model.spec().mlp));
    const BatchContext context = make_batch_context({7, 3}, ropes);
    return run(layer.forward(hidden, context));
  };
  EXPECT_TRUE(output(1, {still, plain}).equal(output(0, {plain})));
  EXPECT_GT(max_difference(output(0, {still, plain}), output(1, {still, plain})), 0.1);
  EXPECT_TRUE(output(std::nullopt, {}).equal(output(0, {still})));
}

TEST(ResidualLayer, PausesAsTheModuleTreeSays) {
  TinyModel tiny;
  const Model model = tiny.open();
  const auto rows = random_rows({3}, 50);
  const auto layer = model.load_layer(1);
  const BatchContext context = model.context(rows);
  Execution execution(layer->forward(model.embed(model.pack_rows(rows)), context));
  ModuleTree seen;
  while (Pause* pause = execution.advance()) {
    auto& group = seen.emplace_back();
    for (const Linear* linear : pause->modules) group.push_back(linear->name);
    multiply(*pause);
  }
  EXPECT_EQ(seen, model.module_names(1));
}

// Rows alone, in a batch of equal rows, and among rows of other lengths: the sums of a product may run in
// another order, nothing else may change. A windowed layer sees only its own row, too.
TEST(Batches, ARowDoesNotDependOnItsBatch) {
  for (const bool windowed : {false, true}) {
    TinyModel tiny;
    if (windowed) {
      tiny.config["model_type"] = "qwen2";
      tiny.config["use_sliding_window"] = true;
      tiny.config["sliding_window"] = 4;
      tiny.config["max_window_layers"] = 0;
      for (int i = 0; i < 2; ++i) {
        for (const std::string part : {"q", "k", "v"}) {
          const std::string name = str("model.layers.", i, ".self_attn.", part, "_proj");
          tiny.tensors[name + ".bias"] = random_normal({tiny.tensors.at(name + ".weight").size(0)}, 77);
        }
      }
    }
    const Model model = tiny.open();
    const std::vector<int64_t> lengths{7, 1, 7, 7, 12, 2, 7};
    const auto rows = random_rows(lengths, 50);
    const at::Tensor together = forward(model, rows);
    int64_t begin = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const at::Tensor alone = forward(model, {rows[r]});
      EXPECT_LT(max_difference(alone, together.narrow(0, begin, lengths[r])), 5e-6) << "row " << r;
      begin += lengths[r];
    }
    EXPECT_LT(max_difference(forward(model, {rows[0], rows[2]}).narrow(0, 7, 7), forward(model, {rows[2]})),
              5e-6);
  }
}

TEST(Batches, ATokenDoesNotDependOnLaterOnes) {
  TinyModel tiny;
  const Model model = tiny.open();
  auto rows = random_rows({9}, 50);
  const at::Tensor before = forward(model, rows);
  rows[0][6] = (rows[0][6] + 1) % 50;
  const at::Tensor after = forward(model, rows);
  EXPECT_TRUE(before.narrow(0, 0, 6).equal(after.narrow(0, 0, 6)));
  for (int64_t p = 6; p < 9; ++p) EXPECT_GT(max_difference(before[p], after[p]), 1e-3) << p;
}

}  // namespace
}  // namespace gramian
