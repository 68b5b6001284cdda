#include "models/sharing/sharing_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace gramian {
namespace {

using Names = std::vector<std::string>;

LayerTree layer(const std::string& mapping) {
  return LayerTree::parse(nlohmann::ordered_json::parse(R"(["model", "layers", "#", )" + mapping + "]"),
                          "a test");
}
constexpr char kSpanning[] =
    R"({"m": ["a:0:in=x", "b:0:in=x", "c:1:in=x", "d:1:in=x", "e:1", "f:2:in=y", "n:!"]})";

SharingPlan plan_of(const char* mapping, bool explicit_tags = true) {
  const LayerTree tree = layer(mapping);
  return {tree, tree.blocks(2), explicit_tags};
}

TEST(SharingPlan, AGroupOverTwoBlocksHasALeaderInEach) {
  const SharingPlan plan = plan_of(kSpanning);
  const SharingGroup& group = *plan.group_for("m.d");
  EXPECT_EQ(group.key, "m:in=x");
  EXPECT_EQ(group.leader(), "m.a");
  EXPECT_EQ(group.followers(), (Names{"m.b", "m.c", "m.d"}));
  EXPECT_TRUE(group.spans_subsets());
  EXPECT_EQ(group.members_in_subset(1), (Names{"m.c", "m.d"}));
  EXPECT_EQ(group.subset_index_of("m.b"), 0u);
  EXPECT_EQ(group.dedup_followers(), (Names{"m.b", "m.d"}));
  EXPECT_EQ(plan.dedup_count(), 2);
  EXPECT_FALSE(plan.group_for("m.f")->dedups_at_runtime());
  EXPECT_EQ(plan.shared_groups().size(), 1u);
  EXPECT_EQ(plan.leaders(), (Names{"m.a", "m.e", "m.f"}));
  EXPECT_EQ(plan.modules(), (Names{"m.a", "m.b", "m.c", "m.d", "m.e", "m.f"}));
}

TEST(SharingPlan, Questions) {
  const SharingPlan plan = plan_of(kSpanning);
  EXPECT_EQ(plan.leader_for("m.d"), "m.a");
  EXPECT_EQ(plan.leader_for("elsewhere"), "elsewhere");
  EXPECT_EQ(plan.group_for("elsewhere"), nullptr);
  EXPECT_EQ(plan.followers_of("m.a").size(), 3u);
  EXPECT_TRUE(plan.followers_of("m.b").empty());
  EXPECT_TRUE(plan.shares_input("m.a", "m.d"));
  EXPECT_FALSE(plan.shares_input("m.a", "m.e"));
  EXPECT_FALSE(plan.shares_input("elsewhere", "nowhere"));
  EXPECT_TRUE(plan.is_explicit("m.f"));  // a tagged module alone
  EXPECT_FALSE(plan.is_explicit("m.e"));
}

TEST(SharingPlan, Restrictions) {
  const SharingPlan plan = plan_of(kSpanning);
  const SharingPlan second = plan.for_subset(1);
  EXPECT_EQ(second.modules(), (Names{"m.c", "m.d", "m.e"}));
  EXPECT_EQ(second.group_for("m.c")->key, "m:in=x");
  EXPECT_EQ(second.dedup_count(), 1);
  const SharingPlan some = plan.filter_modules({"m.f", "m.d", "m.b"});
  EXPECT_EQ(some.leaders(), (Names{"m.b", "m.f"}));
  EXPECT_EQ(some.group_for("m.d")->subset_indices, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(plan.modules().size(), 6u) << "the plan itself stays";
}

TEST(SharingPlan, Prefix) {
  const SharingPlan plan = plan_of(kSpanning).with_prefix("model.layers.3");
  EXPECT_EQ(plan.groups()[0].key, "model.layers.3.m:in=x");
  EXPECT_EQ(plan.groups()[0].parent, "model.layers.3.m");
  EXPECT_EQ(plan.leader_for("model.layers.3.m.d"), "model.layers.3.m.a");
}

TEST(SharingPlan, ExpertsShareWithNoOther) {
  const SharingPlan plan = plan_of(R"({"m": {"experts": {"#": ["g:0:in=x", "u:0:in=x", "d:1"]}}})");
  EXPECT_TRUE(plan.shares_input("m.experts.0.g", "m.experts.0.u"));
  EXPECT_FALSE(plan.shares_input("m.experts.0.g", "m.experts.1.g"));
  EXPECT_EQ(plan.dedup_count(), 2);
}

TEST(SharingPlan, WithoutTrustEveryModuleStandsAlone) {
  const SharingPlan plan = plan_of(kSpanning, false);
  EXPECT_EQ(plan.groups().size(), 6u);
  EXPECT_EQ(plan.dedup_count(), 0);
  EXPECT_TRUE(plan.shared_groups().empty());
}

TEST(SharingPlan, TagsChangeNoBlocks) {
  std::string bare = kSpanning;
  for (size_t at = bare.find(":in="); at != std::string::npos; at = bare.find(":in=")) bare.erase(at, 5);
  EXPECT_EQ(layer(bare).blocks(2), layer(kSpanning).blocks(2));
}

TEST(SharingPlan, BuiltFromManyThreads) {
  const LayerTree tree = layer(R"({"m": {"experts": {"#": ["g:0:in=x", "u:0:in=x", "d:1"]}}})");
  const Blocks blocks = tree.blocks(40);
  std::vector<int64_t> counts(8);
  std::vector<std::thread> threads;
  for (int64_t& count : counts)
    threads.emplace_back([&] { count = SharingPlan(tree, blocks, true).dedup_count(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counts, std::vector<int64_t>(8, 40));
}

}  // namespace
}  // namespace gramian
