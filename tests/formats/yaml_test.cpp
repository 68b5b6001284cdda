#include "formats/yaml.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;

Json read(const std::string& text) { return parse_yaml(text, "recipe.yaml"); }

std::string refused(const std::string& text) {
  const Error error = error_of([&] { read(text); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << text;
  EXPECT_TRUE(std::string(error.what()).starts_with("recipe.yaml: ")) << error.what();
  return error.what();
}

TEST(Yaml, ReadsAsJson) {
  const Json json = read(R"(# a comment
bits: 4
sym: true
mse: 2.4
damp: 1e-3
threshold: 0.5%
yes: no
nothing:
text: "4"
literal: '-:.*\.k_proj$'
list: [1, -1, +7, {a: b}]
dynamic:
  '-:.*k_proj': {}
  +:.*\.down_proj:
    bits: 8
)");
  const Json expected = {{"bits", 4},
                         {"sym", true},
                         {"mse", 2.4},
                         {"damp", 1e-3},
                         {"threshold", "0.5%"},
                         {"yes", "no"},
                         {"nothing", nullptr},
                         {"text", "4"},
                         {"literal", "-:.*\\.k_proj$"},
                         {"list", {1, -1, 7, {{"a", "b"}}}},
                         {"dynamic", {{"-:.*k_proj", Json::object()}, {"+:.*\\.down_proj", {{"bits", 8}}}}}};
  EXPECT_EQ(json, expected) << json.dump(1);
  EXPECT_EQ(read(R"({"bits": 4, "dynamic": {"lm_head": {"group_size": -1}}})"),
            Json({{"bits", 4}, {"dynamic", {{"lm_head", {{"group_size", -1}}}}}}));
  EXPECT_EQ(read(""), Json());
  // Text, not what a C library would make of it.
  EXPECT_EQ(read("[nan, inf, 0x10, 1_000, 12:30:45, .5, 9223372036854775808]"),
            Json({"nan", "inf", "0x10", "1_000", "12:30:45", .5, 9223372036854775808.0}));
}

TEST(Yaml, NamesTheLine) {
  EXPECT_NE(refused("bits: 4\ndynamic: [1, 2\n").find("line"), std::string::npos);
  EXPECT_NE(refused("bits: 4\nsym: true\nbits: 8\n").find("\"bits\" stands twice, line 3"),
            std::string::npos);
  EXPECT_NE(refused("a: 1\n\tb: 2\n").find("line 2"), std::string::npos);
}

TEST(Yaml, WhatCouldGrowOrRunIsRefused) {
  EXPECT_NE(refused("a: &x [1]\nb: [*x, *x]\n").find("anchors are not read, line 1"), std::string::npos);
  EXPECT_NE(refused("a: [*x]\n").find("line 1"), std::string::npos);
  EXPECT_NE(refused("a: !!python/object/apply:os.system [ls]\n").find("tags are not read"),
            std::string::npos);
  EXPECT_NE(refused("a: !!str 4\n").find("tags"), std::string::npos);
  EXPECT_NE(refused("a: 1\n---\nb: 2\n").find("several documents"), std::string::npos);
  EXPECT_NE(refused("? [1, 2]\n: 3\n").find("a key that is no scalar"), std::string::npos);
  EXPECT_NE(refused(std::string(40, '[') + std::string(40, ']')).find("nested deeper than 32"),
            std::string::npos);
  refused(std::string(100'000, '['));
  refused(std::string(100'000, '{'));
  std::string blocks;
  for (int i = 0; i < 20'000; ++i) blocks += "- ";
  EXPECT_NE(refused(blocks + "x").find("nested deeper"), std::string::npos);
  EXPECT_NE(refused("a: 'caf\xe9'\n").find("not UTF-8, line 1"), std::string::npos);
  EXPECT_NE(refused(std::string((1 << 20) + 1, '#')).find("bytes"), std::string::npos);
}

TEST(Yaml, DamageEndsInAnError) {
  const std::string whole =
      "bits: 4\ndynamic:\n  'a|b': {bits: 8, list: [1, \"two\"]}\n  ? c\n  : |\n    text\n";
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const char byte : {'\0', '\x80', '{', '"', '\n', '&', ':'}) {
      std::string damaged = whole;
      damaged[i] = byte;
      for (const std::string& text : {damaged, damaged.substr(0, i + 1)}) {
        try {
          read(text);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << error.what();
        }
      }
    }
  }
}

}  // namespace
}  // namespace gramian
