#include "models/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "models/family.h"
#include "support/files.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;

bool holds(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

TEST(ConfigReader, ReadsTypedValuesAndFallbacks) {
  const Json json = Json::parse(R"({"i": 3, "x": 2.5, "b": true, "t": "a", "none": null, "o": {"i": 7}})");
  const ConfigReader config(json, "config.json");
  EXPECT_EQ(config.integer("i"), 3);
  EXPECT_EQ(config.integer_or("none", 5), 5);
  EXPECT_EQ(config.integer_or("missing", 5), 5);
  EXPECT_EQ(config.number("x"), 2.5);
  EXPECT_EQ(config.number("i"), 3.0);
  EXPECT_EQ(config.number_or("none", 1.5), 1.5);
  EXPECT_TRUE(config.boolean_or("b", false));
  EXPECT_TRUE(config.boolean_or("none", true));
  EXPECT_EQ(config.text_or("t", "z"), "a");
  EXPECT_EQ(config.text_or("missing", "z"), "z");
  EXPECT_EQ(config.object("o").integer("i"), 7);
  EXPECT_TRUE(config.object("missing").json().empty());
  EXPECT_TRUE(config.object("none").json().empty());
  EXPECT_TRUE(config.has("i"));
  EXPECT_FALSE(config.has("none"));
}

TEST(ConfigReader, ComplaintsNameFileKeyAndValue) {
  const Json json =
      Json::parse(R"({"i": "three", "x": "big", "b": 1, "t": 2, "none": null, "o": [1], "f": 2.5, "n": -4})");
  const ConfigReader config(json, "folder/config.json");
  const std::vector<std::pair<std::string, std::function<void()>>> cases{
      {"'i' must be an integer, found \"three\"", [&] { config.integer("i"); }},
      {"'f' must be an integer, found 2.5", [&] { config.integer("f"); }},
      {"'n' must lie in 1..", [&] { config.integer("n"); }},
      {"'n' must lie in -3..3, found -4", [&] { config.integer_or("n", 0, -3, 3); }},
      {"'none' is missing", [&] { config.integer("none"); }},
      {"'gone' is missing", [&] { config.number("gone"); }},
      {"'x' must be a number, found \"big\"", [&] { config.number_or("x", 1); }},
      {"'b' must be true or false, found 1", [&] { config.boolean_or("b", false); }},
      {"'t' must be a text, found 2", [&] { config.text_or("t", ""); }},
      {"'o' must be an object", [&] { config.object("o"); }},
  };
  for (const auto& [text, body] : cases) {
    const Error error = error_of(body);
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
    EXPECT_TRUE(holds(error, "folder/config.json: " + text)) << error.what() << " instead of " << text;
  }
}

TEST(ConfigReader, LargeUnsignedNumbersAreOutOfRange) {
  const Json json = Json::parse(R"({"i": 18446744073709551615})");
  EXPECT_EQ(error_of([&] { ConfigReader(json, "c").integer("i"); }).kind(), ErrorKind::corrupt_data);
}

class DescribeTest : public testing::Test {
 protected:
  DecoderSpec describe() {
    const ConfigReader config(json, "config.json");
    return find_family(config).describe(config);
  }
  Json json =
      Json::parse(R"({"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 9,
                              "num_attention_heads": 4, "num_hidden_layers": 3})");
};

TEST_F(DescribeTest, DefaultsOfTheDenseFamilies) {
  const DecoderSpec spec = describe();
  EXPECT_EQ(spec.layers(), 3);
  EXPECT_EQ(spec.attention[0].kv_heads, 4);
  EXPECT_EQ(spec.attention[0].head_dim, 8);
  EXPECT_DOUBLE_EQ(spec.attention[0].scale, 1 / std::sqrt(8.0));
  EXPECT_TRUE(spec.attention[0].qkv_bias);
  EXPECT_FALSE(spec.attention[0].o_bias);
  EXPECT_FALSE(spec.tied);
  EXPECT_EQ(spec.mlp.activation, Activation::silu);
  EXPECT_EQ(spec.norms.spec.eps, 1e-6);
  EXPECT_EQ(spec.ropes[0].theta, 10000);
}

TEST_F(DescribeTest, FamilyByTypeThenByArchitecture) {
  json["architectures"] = {"LlamaForCausalLM"};
  EXPECT_EQ(find_family({json, "c"}).model_type, "qwen2");
  json.erase("model_type");
  EXPECT_EQ(find_family({json, "c"}).model_type, "llama");
  json["model_type"] = "rwkv";
  const Error error = error_of([&] { find_family({json, "c"}); });
  EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  for (const Family* family : all_families()) EXPECT_TRUE(holds(error, family->model_type)) << error.what();
  EXPECT_TRUE(holds(error, "'rwkv'")) << error.what();
}

TEST_F(DescribeTest, SlidingWindows) {
  const auto windows = [&] {
    std::vector<int64_t> found;
    for (const AttentionSpec& layer : describe().attention) found.push_back(layer.window);
    return found;
  };
  using Windows = std::vector<int64_t>;
  json["sliding_window"] = 5;
  json["max_window_layers"] = 1;
  EXPECT_EQ(windows(), Windows({0, 0, 0}));
  json["use_sliding_window"] = true;
  EXPECT_EQ(windows(), Windows({0, 5, 5}));
  json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(windows(), Windows({5, 0, 5}));
  json["sliding_window"] = nullptr;
  EXPECT_EQ(windows(), Windows({0, 0, 0}));
  json.erase("sliding_window");
  EXPECT_EQ(windows(), Windows({4096, 0, 4096}));
  json["layer_types"] = {"full_attention"};
  EXPECT_EQ(error_of([&] { describe(); }).kind(), ErrorKind::corrupt_data);
  json["layer_types"] = {"full_attention", "linear_attention", "full_attention"};
  EXPECT_EQ(error_of([&] { describe(); }).kind(), ErrorKind::unsupported);
}

TEST_F(DescribeTest, WholeHeadsTurn) {
  json["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(describe().ropes[0].rotary_dim, 8);
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_EQ(error_of([&] { describe(); }).kind(), ErrorKind::unsupported);
}

TEST_F(DescribeTest, RefusesSizesThatDoNotFit) {
  const Json good = json;
  const std::vector<std::tuple<std::string, Json, ErrorKind>> cases{
      {"hidden_size", nullptr, ErrorKind::corrupt_data},
      {"hidden_size", 0, ErrorKind::corrupt_data},
      {"vocab_size", "9", ErrorKind::corrupt_data},
      {"num_attention_heads", 5, ErrorKind::corrupt_data},
      {"num_key_value_heads", 3, ErrorKind::corrupt_data},
      {"num_hidden_layers", 1 << 20, ErrorKind::corrupt_data},
      {"hidden_act", "relu6", ErrorKind::unsupported},
      {"head_dim", 7, ErrorKind::corrupt_data},
      {"intermediate_size", nullptr, ErrorKind::corrupt_data},
      {"use_sliding_window", "yes", ErrorKind::corrupt_data},
  };
  for (const auto& [key, value, kind] : cases) {
    json = good;
    json[key] = value;
    EXPECT_EQ(error_of([&] { describe(); }).kind(), kind) << key;
  }
}

}  // namespace
}  // namespace gramian
