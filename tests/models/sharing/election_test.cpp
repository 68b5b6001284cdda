#include "models/sharing/election.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gramian {
namespace {

using Leaders = std::map<std::string, std::string>;

SharingPlan plan(bool explicit_tags = true) {
  const LayerTree tree = LayerTree::parse(
      nlohmann::ordered_json::parse(
          R"(["#", {"a": ["q:0:in=x", "k:0:in=x", "v:0:in=x", "w:1:in=x", "z:1:in=x", "o:2"]}])"),
      "a test");
  return {tree, tree.blocks(0), explicit_tags};
}
// q, k and v, of which one may be changed.
std::vector<Candidate> qkv() {
  return {{.name = "a.q", .columns = 8, .settings = "hessian"},
          {.name = "a.k", .columns = 8, .settings = "hessian"},
          {.name = "a.v", .columns = 8, .settings = "hessian"}};
}

TEST(Election, TheFirstLeads) {
  const Election election = elect(plan(), qkv());
  EXPECT_EQ(election.leader_of, (Leaders{{"a.k", "a.q"}, {"a.v", "a.q"}}));
  EXPECT_TRUE(election.warnings.empty());
}

TEST(Election, TheFirstOfThoseThatAreThereLeads) {
  std::vector<Candidate> candidates = qkv();
  candidates.erase(candidates.begin());
  EXPECT_EQ(elect(plan(), candidates).leader_of, (Leaders{{"a.v", "a.k"}}));
  std::swap(candidates[0], candidates[1]);
  EXPECT_EQ(elect(plan(), candidates).leader_of, (Leaders{{"a.k", "a.v"}}));
  candidates.pop_back();
  EXPECT_TRUE(elect(plan(), candidates).leader_of.empty());
  EXPECT_TRUE(elect(plan(), {}).leader_of.empty());
}

TEST(Election, AModuleMayBeSwitchedOff) {
  std::vector<Candidate> candidates = qkv();
  candidates[2].shares = false;
  EXPECT_EQ(elect(plan(), candidates).leader_of, (Leaders{{"a.k", "a.q"}}));
  candidates = qkv();
  candidates[0].shares = false;
  EXPECT_EQ(elect(plan(), candidates).leader_of, (Leaders{{"a.v", "a.k"}}));
}

TEST(Election, OtherWidthsAndSettingsSumAlone) {
  std::vector<Candidate> candidates = qkv();
  candidates[1].columns = 16;
  Election election = elect(plan(), candidates);
  EXPECT_EQ(election.leader_of, (Leaders{{"a.v", "a.q"}}));
  EXPECT_EQ(election.warnings,
            std::vector<std::string>{"a.k reads the input of a.q but sums it alone: 16 columns, not 8"});
  candidates = qkv();
  candidates[1].settings = "hessian, float32 staging";
  election = elect(plan(), candidates);
  EXPECT_EQ(election.leader_of, (Leaders{{"a.v", "a.q"}}));
  EXPECT_EQ(election.warnings.size(), 1u);
  candidates[0].settings = candidates[2].settings = candidates[1].settings;
  EXPECT_EQ(elect(plan(), candidates).leader_of.size(), 2u) << "equal settings of any kind share";
}

TEST(Election, EveryBlockElects) {
  std::vector<Candidate> candidates = qkv();
  for (const char* name : {"a.w", "a.z"})
    candidates.push_back({.name = name, .columns = 8, .settings = "hessian"});
  EXPECT_EQ(elect(plan(), candidates).leader_of, (Leaders{{"a.k", "a.q"}, {"a.v", "a.q"}, {"a.z", "a.w"}}));
}

TEST(Election, WithoutAGroupNobodyFollows) {
  EXPECT_TRUE(elect(plan(false), qkv()).leader_of.empty());
  EXPECT_TRUE(elect(plan(), {{.name = "a.o", .columns = 8, .settings = ""},
                             {.name = "b", .columns = 8, .settings = ""}})
                  .leader_of.empty());
}

}  // namespace
}  // namespace gramian
