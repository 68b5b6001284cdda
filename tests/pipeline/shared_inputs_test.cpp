// Who has one sum: the module tree, the forward and the election together; and that a shared sum is the same bits.
#include "pipeline/shared_inputs.h"

#include <gtest/gtest.h>

#include "formats/qqq_format.h"
#include "pipeline/calibrator.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::random_rows;
using testing_support::TinyModel;
using Json = nlohmann::ordered_json;
using Leaders = std::map<std::string, std::string>;

const ModuleTree kPauses{{"a.q", "a.kv"}, {"a.q_b"}, {"a.kv_b"}, {"a.o"}};

LayerTree tree(const std::string& children) {
  return LayerTree::parse(Json::parse(R"(["layers", "#", {)" + children + "}]"), "a test");
}

LayerSharing share(const std::string& children, bool tags = true, const std::string& skipped = "") {
  static const Linear kLinear{.name = "", .in_features = 8, .op = {}};
  return share_layer(tree(children), kPauses, tags,
                     [&](const std::string& name) { return name == skipped ? nullptr : &kLinear; });
}

TEST(ShareLayer, TagsDecide) {
  const char* children = R"("a": ["q:in=x", "kv:in=x", "q_b:1", "kv_b:1", "o:2"])";
  const LayerSharing layer = share(children);
  EXPECT_EQ(layer.election.leader_of, (Leaders{{"a.kv", "a.q"}}));
  EXPECT_TRUE(layer.contradictions.empty());
  EXPECT_TRUE(share(children, false).election.leader_of.empty()) << "a type that is not verified";
  EXPECT_TRUE(share(R"("a": ["q", "kv", "q_b:1", "kv_b:1", "o:2"])").election.leader_of.empty());
  EXPECT_TRUE(share(children, true, "a.q").election.leader_of.empty()) << "what has no sum leads nobody";
}

TEST(ShareLayer, TheForwardHasTheLastWord) {
  const LayerSharing layer = share(R"("a": ["q:in=x", "kv:in=x", "q_b:1:in=y", "kv_b:1:in=y", "o:2"])");
  EXPECT_EQ(layer.election.leader_of, (Leaders{{"a.kv", "a.q"}})) << "the other group is not touched";
  EXPECT_EQ(layer.contradictions, Json::parse(R"([{"group": "a:in=y", "modules": ["a.q_b", "a.kv_b"]}])"));
}

TEST(ShareLayer, BlocksTellWhatWasAdopted) {
  const LayerSharing layer = share(R"("a": ["q:in=x", "kv:in=x", "q_b:1", "kv_b:1", "o:2"])");
  int64_t cumulative = 5;
  std::vector<Json> events = layer.events(3, {"a.kv"}, cumulative);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(cumulative, 6);
  EXPECT_EQ(events[0], Json::parse(R"({"lifecycle_stage": "forward_capture_complete", "layer_index": 3,
      "subset_index": 1, "subset_total": 3, "enabled": true, "expected_followers": 1, "adopted_followers": 1,
      "cumulative_adopted_followers": 6, "leader_count": 1, "follower_to_leader": {"a.kv": "a.q"},
      "subset_module_count": 2, "status": "verified"})"));
  events = layer.events(3, {}, cumulative);
  EXPECT_EQ(events[0].at("status"), "mismatch");
  EXPECT_EQ(cumulative, 6);
}

class SharedInputsTest : public testing::Test {
 protected:
  SharedInputs shared(const Model& model, const SharingOptions& options = {}) {
    const QuantizePlan plan = make_plan(model, qqq_format(), {.grid = {.group_size = 128}}, false);
    return {model, plan, options, log_};
  }
  TinyModel tiny_{{.hidden = 128, .intermediate = 256, .heads = 2, .kv_heads = 1, .layers = 2, .vocab = 50}};
  Log log_{LogLevel::quiet};
};

TEST_F(SharedInputsTest, ALlamaSavesThreeSumsALayer) {
  const Model model = tiny_.open();
  EXPECT_EQ(shared(model).followers(), 2 * 3);
  EXPECT_EQ(shared(model).to_json(),
            (Json{{"enabled", true}, {"verified", true}, {"planned", 6}, {"contradictions", Json::array()}}));
  EXPECT_EQ(shared(model, {.enabled = false}).followers(), 0);
}

TEST_F(SharedInputsTest, AModelWithoutATypeSharesNothing) {
  tiny_.config.erase("model_type");
  const Model model = tiny_.open();
  EXPECT_EQ(shared(model).followers(), 0);
  EXPECT_EQ(shared(model).to_json().at("verified"), false);
}

TEST_F(SharedInputsTest, ASharedSumIsTheSameBits) {
  const Model model = tiny_.open();
  std::map<std::string, at::Tensor> hessians[2];
  int64_t accumulations[2] = {};
  for (const bool on : {false, true}) {
    const SharedInputs sharing = shared(model, {.enabled = on});
    for (const Sequential order : {Sequential::subset, Sequential::none}) {
      CalibratorOptions options{.batch = 2, .lanes = 2, .sequential = order};
      options.share = [&](const std::vector<Linear*>& pause) { return sharing.sums(pause); };
      Calibrator calibrator(model, random_rows({9, 4, 4, 13, 1}, 50), options);
      for (int64_t i = 0; i < 2; ++i) {
        const auto layer = model.load_layer(i);
        calibrator.run_layer(i, *layer, [&](const PauseStatistics& statistics) {
          for (const Linear* module : statistics.modules)
            hessians[on][module->name + to_text(order)] = statistics.hessian;
        });
      }
      accumulations[on] += calibrator.accumulations();
    }
  }
  ASSERT_EQ(hessians[0].size(), 2u * 14);
  for (const auto& [name, hessian] : hessians[0]) EXPECT_TRUE(hessian.equal(hessians[1].at(name))) << name;
  const int64_t batches = 3, orders = 2;
  EXPECT_EQ(accumulations[0], orders * batches * 14);
  EXPECT_EQ(accumulations[1], orders * batches * (14 - 6));
}

}  // namespace
}  // namespace gramian
