// Held-out rows against a run of our own, layer by layer.
#include "pipeline/held_out.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::random_rows;
using testing_support::TinyModel;

const std::vector<int64_t> kLengths{9, 9, 4, 13, 1};
const std::string kReplaced = "model.layers.0.mlp.down_proj";

// 0.9 of one module's weight, the others as they are.
std::shared_ptr<const LinearOp> stored(const Linear& module) {
  if (module.name != kReplaced) return nullptr;
  const at::Tensor& weight = dynamic_cast<const DenseLinear&>(*module.op).weight();
  return std::make_shared<DenseLinear>(weight.mul(0.9), at::Tensor());
}

// The layer's output for the rows, packed; `replace`: with what is stored.
at::Tensor layer_output(const Model& model, int64_t index, const at::Tensor& hidden,
                        const BatchContext& context, bool replace) {
  const auto layer = model.load_layer(index);
  Execution execution(layer->forward(hidden, context));
  while (Pause* pause = execution.advance()) {
    for (Linear* module : pause->modules) {
      if (const auto op = stored(*module); op != nullptr && replace) module->op = op;
    }
    multiply(*pause);
  }
  return execution.result();
}

double error(const at::Tensor& y, const at::Tensor& q) {
  double sum = 0;
  for (int64_t token = 0; token < y.size(0); ++token) {
    const at::Tensor of = y[token].to(at::kDouble), off = q[token].to(at::kDouble).sub(of);
    sum += off.square().sum().item<double>() / of.square().sum().item<double>();
  }
  return std::sqrt(sum / static_cast<double>(y.size(0)));
}

TEST(HeldOutTest, MeasuresWhatALayerLosesAndWhatAddsUp) {
  TinyModel tiny;
  const Model model = tiny.open();
  const auto rows = random_rows(kLengths, 50);
  HeldOut held_out(model, rows, {.batch = 2, .threads = 1});
  EXPECT_EQ(held_out.rows(), 5);
  EXPECT_EQ(held_out.tokens(), 36);
  const BatchContext context = model.context(rows);
  const at::Tensor first = model.embed(model.pack_rows(rows));
  const at::Tensor y = layer_output(model, 0, first, context, false),
                   q = layer_output(model, 0, first, context, true);

  const HeldOut::Loss of_first = held_out.run_layer(0, stored);
  EXPECT_GT(of_first.own, 0.001);
  EXPECT_NEAR(of_first.own, error(y, q), 1e-5);
  EXPECT_EQ(of_first.own, of_first.since_first);
  ASSERT_EQ(of_first.modules.size(), 1U);
  EXPECT_NEAR(of_first.modules.at(kReplaced), 0.1, 1e-5);

  const HeldOut::Loss of_second = held_out.run_layer(1, stored);
  EXPECT_EQ(of_second.own, 0);
  EXPECT_TRUE(of_second.modules.empty());
  EXPECT_NEAR(of_second.since_first,
              error(layer_output(model, 1, y, context, false), layer_output(model, 1, q, context, false)),
              1e-5);
  EXPECT_GT(of_second.since_first, 0.001);

  // A layer that was only passed leaves the same behind.
  HeldOut resumed(model, rows, {.batch = 2, .threads = 1});
  resumed.pass_layer(0, stored);
  const HeldOut::Loss again = resumed.run_layer(1, stored);
  EXPECT_EQ(again.own, of_second.own);
  EXPECT_EQ(again.since_first, of_second.since_first);
}

TEST(HeldOutTest, ReasonsByWhatIsUnusual) {
  const auto reason = [](const char* key, const Json& value) {
    Json module{{"fallback", nullptr},    {"samples", 4096},    {"in_features", 128},
                {"relative_error", 0.05}, {"damp_attempts", 1}, {"dead_columns", 0},
                {"diagonal_spread", 1.5}, {"bits", 4},          {"held_out_error", 0.06}};
    module[key] = value;
    return likely_reason(module);
  };
  EXPECT_EQ(reason("bits", 4), "");
  EXPECT_EQ(reason("fallback", "rtn: no calibration tokens"), "rounded plainly (rtn: no calibration tokens)");
  EXPECT_EQ(reason("samples", 100), "only 100 calibration tokens for 128 input columns");
  EXPECT_NE(reason("held_out_error", 0.09).find("unlike these: there it loses 5.0 %"), std::string::npos);
  EXPECT_NE(reason("damp_attempts", 2).find("damping"), std::string::npos);
  EXPECT_NE(reason("diagonal_spread", 31.0).find("outliers"), std::string::npos);
  EXPECT_NE(reason("dead_columns", 7).find("0 in every"), std::string::npos);
  EXPECT_EQ(reason("bits", 2), "2 bits are few");
  // What is not known is no reason.
  EXPECT_EQ(reason("diagonal_spread", nullptr), "");
}

}  // namespace
}  // namespace gramian
