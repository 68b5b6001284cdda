// Every plan-cases.json: trees of the file through the notation, the blocks and the plan.
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "formats/module_patterns.h"
#include "models/sharing/sharing_plan.h"
#include "support/golden.h"

namespace gramian::golden {
namespace {

using Json = nlohmann::ordered_json;

// What a "-:" rule of `dynamic` matches.
bool is_excluded(const Json& dynamic, const std::string& name) {
  return !excluded_modules({{"dynamic", dynamic}}, {name}, "plan-cases.json").empty();
}

Json group_json(const SharingGroup& group) {
  return {{"key", group.key},
          {"parent", group.parent},
          {"modules", group.modules},
          {"subset_indices", group.subset_indices},
          {"explicit", group.is_explicit},
          {"dedup_followers", group.dedup_followers()}};
}

void check_error(const Json& tree, const std::string& kind) {
  const std::string says = kind == "empty_tag" ? "input tag is empty" : kind;
  try {
    LayerTree::parse(tree, "a case");
    ADD_FAILURE() << "accepted " << tree;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  }
}

void check_case(const Json& given) {
  const Json& expect = given.at("expect");
  if (expect.contains("error")) return check_error(given.at("tree"), expect.at("error"));
  const LayerTree tree = LayerTree::parse(given.at("tree"), "a case");
  const Json dynamic = given.value("dynamic", Json::object());
  const Blocks blocks = tree.blocks(given.at("num_experts").get<int64_t>(),
                                    [&](const std::string& name) { return is_excluded(dynamic, name); });
  EXPECT_EQ(Json(blocks), expect.at("blocks"));
  const SharingPlan plan(tree, blocks, true);
  Json groups = Json::array();
  for (const SharingGroup& group : plan.groups()) groups.push_back(group_json(group));
  EXPECT_EQ(groups.dump(1), expect.at("groups").dump(1));
  EXPECT_EQ(plan.dedup_count(), expect.at("dedup_count"));
  EXPECT_EQ(SharingPlan(tree, blocks, false).dedup_count(), expect.at("unverified_dedup_count"));
}

}  // namespace

void collect_plans(const std::filesystem::path& root) {
  for (const auto& folder : folders_with(root, "plan-cases.json")) {
    std::ifstream file(folder / "plan-cases.json");
    const Json cases = Json::parse(file);
    for (const auto& [name, given] : cases.at("cases").items())
      add("plan", name, [given = given] { check_case(given); });
  }
}

}  // namespace gramian::golden

int main(int argc, char** argv) {
  return gramian::golden::run(argc, argv, "shared_input", [](const std::filesystem::path& root) {
    gramian::golden::collect_plans(root);
  });
}
