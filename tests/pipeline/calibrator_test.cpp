// The calibrator against an independent run, row by row, whose inputs are captured and squared in double.
#include "pipeline/calibrator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>

#include "support/sealed_tensor.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_rows;
using testing_support::TinyModel;

const std::vector<int64_t> kLengths{9, 9, 4, 1, 13, 4, 4, 7, 2, 30, 5};

// What the solver put in a module's place: half of its weight. Counts its products.
class Halved final : public LinearOp {
 public:
  Halved(const Model& model, const std::string& name, std::atomic<int64_t>* products = nullptr)
      : dense_(model.checkpoint().tensor(name + ".weight").to_tensor().mul(0.5).to(model.dtype()),
               at::Tensor()),
        products_(products) {}
  at::Tensor forward(const at::Tensor& x) const override {
    if (products_ != nullptr) ++*products_;
    return dense_.forward(x);
  }

 private:
  DenseLinear dense_;
  std::atomic<int64_t>* products_;
};

// Group of modules -> (2/n) Σ xxᵀ in double of the rows run one at a time, with halved weights from the pause
// on.
std::map<std::vector<std::string>, at::Tensor> independent_run(const Model& model,
                                                               const std::vector<TokenRow>& rows) {
  std::map<std::vector<std::string>, at::Tensor> sums;
  double tokens = 0;
  for (const TokenRow& row : rows) {
    const BatchContext context = model.context({row});
    at::Tensor hidden = model.embed(model.pack_rows({row}));
    tokens += static_cast<double>(row.size());
    for (int64_t i = 0; i < model.spec().layers(); ++i) {
      const auto layer = model.load_layer(i);
      Execution execution(layer->forward(std::move(hidden), context));
      while (Pause* pause = execution.advance()) {
        std::vector<std::string> names;
        for (Linear* module : pause->modules) {
          names.push_back(module->name);
          module->op = std::make_shared<Halved>(model, module->name);
        }
        const at::Tensor x = pause->input.to(at::kDouble);
        const at::Tensor product = x.t().matmul(x);
        at::Tensor& sum = sums[names];
        sum = sum.defined() ? sum.add(product) : product;
        multiply(*pause);
      }
      hidden = execution.result();
    }
  }
  for (auto& [names, sum] : sums) sum.mul_(2 / tokens);
  return sums;
}

struct Seen {
  std::map<std::vector<std::string>, at::Tensor> hessians;
  std::vector<std::vector<std::string>> order;
  int64_t multiplications = 0;
  int64_t batches = 0;
  int64_t peak = 0;
  int64_t parked = 0;
};

// `products_per_batch`: how often each replaced module is to run for a batch; 0: do not look.
Seen calibrate(const Model& model, const std::vector<TokenRow>& rows, const CalibratorOptions& options,
               int64_t products_per_batch = 1) {
  Seen seen;
  std::map<std::string, std::atomic<int64_t>> products;
  Calibrator calibrator(model, rows, options);
  const auto caller = std::this_thread::get_id();
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    const auto layer = model.load_layer(i);
    calibrator.run_layer(i, *layer, [&](const PauseStatistics& statistics) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(statistics.tokens, calibrator.tokens());
      std::vector<std::string> names;
      for (Linear* module : statistics.modules) {
        names.push_back(module->name);
        module->op = std::make_shared<Halved>(model, module->name, &products[module->name]);
      }
      seen.hessians[names] = statistics.hessian;
      seen.order.push_back(names);
    });
  }
  seen.multiplications = calibrator.linear_multiplications();
  seen.batches = calibrator.batches();
  // Every module ran once per batch, and with its replacement.
  for (const auto& [name, count] : products) {
    if (products_per_batch > 0) {
      EXPECT_EQ(count.load(), products_per_batch * seen.batches) << name;
    }
  }
  seen.peak = calibrator.activations().peak_bytes();
  seen.parked = calibrator.activations().parked_bytes();
  return seen;
}

void expect_equal_hessians(const Seen& seen, const std::map<std::vector<std::string>, at::Tensor>& expected,
                           double bound) {
  ASSERT_EQ(seen.hessians.size(), expected.size());
  for (const auto& [names, hessian] : expected) {
    const at::Tensor& found = seen.hessians.at(names);
    EXPECT_EQ(found.scalar_type(), at::kFloat);
    EXPECT_TRUE(found.equal(found.t())) << names[0];
    EXPECT_LT(max_difference(found, hessian) / hessian.abs().max().item<double>(), bound) << names[0];
  }
}

class CalibratorTest : public testing::Test {
 protected:
  TinyModel tiny_;
  Model model_ = tiny_.open();
  std::vector<TokenRow> rows_ = random_rows(kLengths, 50);
};

TEST_F(CalibratorTest, HessiansAreThoseOfAnIndependentRunWithReplacedModules) {
  const auto expected = independent_run(model_, rows_);
  for (const int64_t batch : {1, 2, 3, 8, 100}) {
    SCOPED_TRACE(batch);
    const Seen seen = calibrate(model_, rows_, {.batch = batch, .lanes = 1, .threads = 1});
    // fp32 products of at most 88 tokens, and fp32 activations.
    expect_equal_hessians(seen, expected, 1e-5);
    const int64_t batches = (static_cast<int64_t>(rows_.size()) + batch - 1) / batch;
    EXPECT_EQ(seen.batches, batches);
    EXPECT_EQ(seen.multiplications, batches * 7 * 2);
    ModuleTree order;
    for (int64_t i = 0; i < 2; ++i) {
      for (const auto& group : model_.module_names(i)) order.push_back(group);
    }
    EXPECT_EQ(seen.order, order);
  }
}

TEST_F(CalibratorTest, UnreplacedModulesWouldGiveOtherHessians) {
  // The test of the test: what comes after the first pause depends on the replacement.
  const auto expected = independent_run(model_, rows_);
  Calibrator calibrator(model_, rows_, {.batch = 4});
  const auto layer = model_.load_layer(0);
  int pauses = 0;
  calibrator.run_layer(0, *layer, [&](const PauseStatistics& statistics) {
    std::vector<std::string> names;
    for (const Linear* module : statistics.modules) names.push_back(module->name);
    const at::Tensor& hessian = expected.at(names);
    const double difference =
        max_difference(statistics.hessian, hessian) / hessian.abs().max().item<double>();
    if (pauses++ == 0) {
      EXPECT_LT(difference, 1e-5);
    } else {
      EXPECT_GT(difference, 0.05);
    }
  });
  EXPECT_EQ(pauses, 4);
}

TEST_F(CalibratorTest, LanesAgree) {
  const Seen one = calibrate(model_, rows_, {.batch = 2, .lanes = 1, .threads = 1});
  for (const int lanes : {2, 3, 8}) {
    SCOPED_TRACE(lanes);
    const Seen several = calibrate(model_, rows_, {.batch = 2, .lanes = lanes, .threads = 2});
    EXPECT_EQ(several.multiplications, one.multiplications);
    expect_equal_hessians(several, one.hessians, 2e-6);
    // The order in which lanes finish does not show.
    const Seen again = calibrate(model_, rows_, {.batch = 2, .lanes = lanes, .threads = 2});
    for (const auto& [names, hessian] : several.hessians)
      EXPECT_TRUE(again.hessians.at(names).equal(hessian)) << names[0];
  }
}

TEST_F(CalibratorTest, WorksInBf16) {
  const Model half = tiny_.open({.dtype = at::kBFloat16});
  const auto expected = independent_run(model_, rows_);
  const Seen seen = calibrate(half, rows_, {.batch = 3, .lanes = 2, .threads = 2});
  const auto first = seen.order[0];
  EXPECT_EQ(seen.hessians.at(first).scalar_type(), at::kFloat);
  EXPECT_LT(max_difference(seen.hessians.at(first), expected.at(first)) /
                expected.at(first).abs().max().item<double>(),
            0.02);
}

TEST_F(CalibratorTest, ErrorsComeOut) {
  class Fails final : public LinearOp {
   public:
    at::Tensor forward(const at::Tensor&) const override { throw std::runtime_error("broken module"); }
  };
  auto bad = rows_;
  bad[3][0] = 50;
  EXPECT_THROW(Calibrator(model_, bad, {}), Error);
  for (const int lanes : {1, 3}) {
    Calibrator calibrator(model_, rows_, {.batch = 2, .lanes = lanes, .threads = 2});
    const auto layer = model_.load_layer(0);
    EXPECT_THROW(calibrator.run_layer(0, *layer,
                                      [&](const PauseStatistics& statistics) {
                                        statistics.modules[0]->op = std::make_shared<Fails>();
                                      }),
                 std::runtime_error);
  }
  // A model whose activations overflow is a numerical error, not a NaN in the result.
  tiny_.tensors["model.layers.0.input_layernorm.weight"].fill_(1e30);
  tiny_.tensors["model.layers.0.self_attn.v_proj.weight"].fill_(1e30);
  const Model hot = tiny_.open();
  Calibrator calibrator(hot, rows_, {.batch = 2});
  const auto layer = hot.load_layer(0);
  const Error error =
      testing_support::error_of([&] { calibrator.run_layer(0, *layer, [](const PauseStatistics&) {}); });
  EXPECT_EQ(error.kind(), ErrorKind::numerical);
}

TEST(Calibrator, NeverReadsTheHead) {
  TinyModel tiny({.vocab = 4096});
  const Model model = tiny.open();
  const testing_support::SealedTensor sealed(model.checkpoint(), "lm_head.weight");
  Calibrator calibrator(model, random_rows({8, 3}, 4096), {.batch = 2});
  int pauses = 0;
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    const auto layer = model.load_layer(i);
    calibrator.run_layer(i, *layer, [&](const PauseStatistics&) { ++pauses; });
  }
  EXPECT_EQ(pauses, 8);
}

// The head's Hessian is that of the last norm's outputs, with all layers' replaced weights before it.
TEST_F(CalibratorTest, TheHeadReadsTheLastNorm) {
  at::Tensor expected = tensor::zeros({32, 32}, at::kDouble);
  for (const TokenRow& row : rows_) {
    const BatchContext context = model_.context({row});
    at::Tensor hidden = model_.embed(model_.pack_rows({row}));
    for (int64_t i = 0; i < model_.spec().layers(); ++i) {
      const auto layer = model_.load_layer(i);
      Execution execution(layer->forward(std::move(hidden), context));
      while (Pause* pause = execution.advance()) {
        for (Linear* module : pause->modules) module->op = std::make_shared<Halved>(model_, module->name);
        multiply(*pause);
      }
      hidden = execution.result();
    }
    const at::Tensor normed = model_.final_norm(hidden).to(at::kDouble);
    expected.add_(normed.t().matmul(normed));
  }
  for (const int lanes : {1, 3}) {
    Calibrator calibrator(model_, rows_, {.batch = 2, .lanes = lanes});
    for (int64_t i = 0; i < model_.spec().layers(); ++i) {
      const auto layer = model_.load_layer(i);
      calibrator.run_layer(i, *layer, [&](const PauseStatistics& statistics) {
        for (Linear* module : statistics.modules) module->op = std::make_shared<Halved>(model_, module->name);
      });
    }
    Linear head = model_.head();
    EXPECT_EQ(head.name, "lm_head");
    EXPECT_EQ(head.out_features, 50);
    int calls = 0;
    const int64_t before = calibrator.accumulations();
    calibrator.run_head(head, [&](const PauseStatistics& statistics) {
      ++calls;
      EXPECT_EQ(statistics.tokens, calibrator.tokens());
      EXPECT_EQ(statistics.modules, std::vector<Linear*>{&head});
      const at::Tensor sum = expected.mul(2.0 / static_cast<double>(statistics.tokens));
      EXPECT_LT(max_difference(statistics.hessian, sum) / sum.abs().max().item<double>(), 1e-5);
    });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(calibrator.accumulations() - before, calibrator.batches());
  }
}

TEST_F(CalibratorTest, EveryWayOfWaitingGivesTheSameBytes) {
  const testing_support::TemporaryFolder scratch;
  // Wide enough that tensors fill pages, which is what is counted and put into files.
  TinyModel wide({.hidden = 128, .intermediate = 192, .heads = 4, .kv_heads = 2, .layers = 2, .vocab = 50});
  const Model model = wide.open();
  for (const int lanes : {1, 2}) {
    const Seen suspended = calibrate(model, rows_, {.batch = 2, .lanes = lanes, .threads = 2});
    for (const Waiting waiting : {Waiting::suspend, Waiting::replay}) {
      for (const bool spill : {false, true}) {
        SCOPED_TRACE(testing::Message() << lanes << static_cast<int>(waiting) << spill);
        CalibratorOptions options{.batch = 2, .lanes = lanes, .threads = 3, .waiting = waiting};
        if (spill) options.spill = scratch.path();
        const Seen seen = calibrate(model, rows_, options, waiting == Waiting::replay ? 0 : 1);
        EXPECT_EQ(seen.order, suspended.order);
        for (const auto& [names, hessian] : suspended.hessians)
          EXPECT_TRUE(seen.hessians.at(names).equal(hessian)) << names[0];
        EXPECT_EQ(seen.parked > 0, spill);
        if (waiting == Waiting::suspend) {
          EXPECT_EQ(seen.multiplications, suspended.multiplications);
        } else {
          EXPECT_GT(seen.multiplications, suspended.multiplications);
        }
        // Fewer bytes in memory at one time than with everything suspended. With two lanes it is also a matter of time.
        if (lanes == 1 && (waiting == Waiting::replay || spill)) {
          EXPECT_LT(seen.peak, suspended.peak);
        }
      }
    }
  }
}

TEST_F(CalibratorTest, LayerAndNoneTakeStatisticsWithOriginalWeights) {
  const Seen subset = calibrate(model_, rows_, {.batch = 4});
  const Seen layer = calibrate(model_, rows_, {.batch = 4, .sequential = Sequential::layer}, 0);
  const Seen none = calibrate(model_, rows_, {.batch = 4, .sequential = Sequential::none}, 0);
  EXPECT_EQ(layer.order, subset.order);
  EXPECT_EQ(none.order, subset.order);
  // The original model's own statistics.
  std::map<std::vector<std::string>, at::Tensor> original;
  Calibrator reference(model_, rows_, {.batch = 4});
  for (int64_t i = 0; i < 2; ++i) {
    const auto loaded = model_.load_layer(i);
    reference.run_layer(i, *loaded, [&](const PauseStatistics& statistics) {
      std::vector<std::string> names;
      for (const Linear* module : statistics.modules) names.push_back(module->name);
      original[names] = statistics.hessian;
    });
  }
  for (size_t pause = 0; pause < subset.order.size(); ++pause) {
    const auto& names = subset.order[pause];
    EXPECT_TRUE(none.hessians.at(names).equal(original.at(names))) << names[0];
    // The first layer sees the original input; later ones what the solved layers before them make of it.
    EXPECT_EQ(layer.hessians.at(names).equal(original.at(names)), pause < 4) << names[0];
    EXPECT_EQ(subset.hessians.at(names).equal(original.at(names)), pause == 0) << names[0];
  }
  EXPECT_EQ(none.multiplications, subset.multiplications);
  EXPECT_EQ(layer.multiplications, 2 * subset.multiplications);
}

TEST_F(CalibratorTest, NonFiniteInputsAreNamedByRowAndToken) {
  // Token 7 stands once, in row 3 at position 0, and its embedding overflows behind the first norm.
  auto rows = rows_;
  for (auto& row : rows) {
    for (int64_t& id : row) id = id == 7 ? 8 : id;
  }
  rows[4][5] = 7;
  tiny_.tensors["model.embed_tokens.weight"][7].fill_(std::numeric_limits<float>::infinity());
  const Model hot = tiny_.open();
  for (const int64_t batch : {1, 2, 3, 100}) {
    Calibrator calibrator(hot, rows, {.batch = batch});
    const auto layer = hot.load_layer(0);
    const Error error =
        testing_support::error_of([&] { calibrator.run_layer(0, *layer, [](const PauseStatistics&) {}); });
    EXPECT_EQ(error.kind(), ErrorKind::numerical);
    const std::string text = error.what();
    EXPECT_NE(text.find("model.layers.0.self_attn.q_proj, calibration row 4, token 5"), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace gramian
