// The plan against what the calibrator then really holds.
#include "pipeline/budget.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/qqq_format.h"
#include "pipeline/layer_probe.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::random_rows;
using testing_support::TemporaryFolder;
using testing_support::TinyModel;

class BudgetTest : public testing::Test {
 protected:
  BudgetPlan plan(const BudgetOptions& options, CalibratorOptions calibrator = {.batch = 4}) {
    return plan_budget(model_, modules_, rows_, calibrator, solve_, options, pool_);
  }

  TinyModel tiny_{{.hidden = 256, .intermediate = 512, .heads = 4, .kv_heads = 2, .layers = 2, .vocab = 50}};
  Model model_ = tiny_.open();
  QuantizePlan modules_ = make_plan(model_, qqq_format(), {.grid = {.group_size = 128}}, false);
  std::vector<TokenRow> rows_ = random_rows(std::vector<int64_t>(48, 200), 50);
  SolveOptions solve_;
  ThreadPool pool_{2};
  TemporaryFolder scratch_;
};

TEST_F(BudgetTest, WithoutABudgetBatchesAreSuspended) {
  const BudgetPlan found = plan({});
  EXPECT_EQ(found.waiting, Waiting::suspend);
  EXPECT_FALSE(found.spill);
  EXPECT_GE(found.peak_bytes, found.smallest_bytes);
  EXPECT_GT(found.seconds(), 0);
  EXPECT_EQ(to_json(found).at("activations"), "suspend");
}

TEST_F(BudgetTest, TheEstimateOfActivationsIsWhatTheCalibratorHolds) {
  for (const auto activations : {Activations::suspend, Activations::spill, Activations::replay}) {
    SCOPED_TRACE(static_cast<int>(activations));
    CalibratorOptions options{.batch = 4};
    const BudgetPlan found = plan({.activations = activations, .scratch = scratch_.path()}, options);
    options.waiting = found.waiting;
    if (found.spill) options.spill = scratch_.path();
    Calibrator calibrator(model_, rows_, options);
    for (int64_t i = 0; i < 2; ++i) {
      const auto layer = model_.load_layer(i);
      calibrator.run_layer(i, *layer, [](const PauseStatistics&) {});
    }
    const auto held = static_cast<double>(calibrator.activations().peak_bytes());
    const auto estimated = static_cast<double>(found.activation_bytes);
    EXPECT_GT(estimated, 0.8 * held);
    EXPECT_LT(estimated, 1.6 * held);
  }
}

TEST_F(BudgetTest, ASmallerBudgetChangesHowBatchesWait) {
  const BudgetOptions free{.scratch = scratch_.path()};
  const BudgetPlan all = plan(free);
  BudgetOptions tight = free;
  // Between the two, since the process itself grows a little from one plan to the next.
  tight.memory_bytes = (all.smallest_bytes + all.peak_bytes) / 2;
  const BudgetPlan found = plan(tight);
  EXPECT_TRUE(found.spill || found.waiting == Waiting::replay);
  EXPECT_LT(found.peak_bytes, all.peak_bytes);
  BudgetOptions fixed = tight;
  fixed.activations = Activations::replay;
  fixed.memory_bytes.reset();
  EXPECT_EQ(plan(fixed).waiting, Waiting::replay);
}

TEST_F(BudgetTest, ABudgetThatCannotWorkNamesTheSmallestThatCan) {
  const Error error = error_of([&] { plan({.memory_bytes = 1 << 20, .scratch = scratch_.path()}); });
  EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  const std::string text = error.what();
  const size_t at = text.find("at least ");
  ASSERT_NE(at, std::string::npos) << text;
  const int64_t smallest = std::stoll(text.substr(at + 9)) << 20;
  EXPECT_NO_THROW(plan({.memory_bytes = smallest + (8 << 20), .scratch = scratch_.path()}));
}

TEST_F(BudgetTest, WordsForActivations) {
  EXPECT_EQ(parse_activations("auto"), Activations::automatic);
  EXPECT_EQ(parse_activations("spill"), Activations::spill);
  EXPECT_THROW(parse_activations("disk"), Error);
}

TEST_F(BudgetTest, LayersOfOneShapeAreProbedOnce) {
  EXPECT_EQ(layer_signature(modules_, 0), layer_signature(modules_, 1));
  TinyModel other({.hidden = 256, .intermediate = 256, .heads = 4, .kv_heads = 2, .layers = 1, .vocab = 50});
  const Model model = other.open();
  EXPECT_NE(layer_signature(make_plan(model, qqq_format(), {.grid = {.group_size = 128}}, false), 0),
            layer_signature(modules_, 0));
}

}  // namespace
}  // namespace gramian
