#include "formats/qqq_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "formats/module_patterns.h"
#include "formats/qqq_format.h"
#include "support/files.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;
using Json = nlohmann::ordered_json;
using Tensors = std::map<std::string, at::Tensor>;

constexpr int64_t kN = 64, kK = 256;
const double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

// The tensors of module "m"; every code of output 0's first group is 0, and so is all of output 1.
Tensors module(bool grouped) {
  std::mt19937 random(7);
  QuantizedLinear quantized;
  quantized.group_size = grouped ? 128 : kK;
  quantized.codes = tensor::empty({kN, kK}, at::kChar);
  for (int64_t i = 0; i < kN * kK; ++i)
    quantized.codes.mutable_data_ptr<int8_t>()[i] = static_cast<int8_t>(static_cast<int>(random() % 15) - 7);
  quantized.codes[0].narrow(0, 0, 128).zero_();
  quantized.codes[1].zero_();
  quantized.scale = tensor::full({kN, kK / quantized.group_size}, 0.01, at::kFloat);
  const qqq::Packed packed = qqq::pack(quantized, qqq::channel_scale_from_codes(quantized),
                                       tensor::full({kN}, 0.5, at::kFloat), "m");
  Tensors tensors{{"m.B", packed.B}, {"m.s_channel", packed.s_channel}, {"m.bias", packed.bias}};
  if (grouped) tensors["m.s_group"] = packed.s_group;
  return tensors;
}

class QqqCheckTest : public testing::Test {
 protected:
  ModuleCheck check(const Tensors& tensors, int64_t group_size, bool has_bias = true) {
    write_bytes(folder_.path() / "config.json", "{}");
    save_safetensors(folder_.path() / "model.safetensors", tensors);
    return qqq::check_module(Checkpoint(folder_.path()), "m", kN, kK, has_bias, group_size);
  }
  // The one problem of a grouped module that `edit` damages.
  std::string fault(const std::function<void(Tensors&)>& edit, bool has_bias = true) {
    Tensors tensors = module(true);
    edit(tensors);
    const std::vector<std::string> problems = check(tensors, 128, has_bias).problems;
    EXPECT_EQ(problems.size(), 1u) << (problems.empty() ? "" : problems[0]);
    return problems.empty() ? "" : problems[0];
  }
  TemporaryFolder folder_;
};

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(QqqCheckTest, SoundModulesPass) {
  for (const bool grouped : {false, true}) {
    Tensors tensors = module(grouped);
    const ModuleCheck sound = check(tensors, grouped ? 128 : -1);
    EXPECT_TRUE(sound.problems.empty()) << sound.problems[0];
    EXPECT_EQ(sound.saturated, 0);
    EXPECT_TRUE(check(tensors, grouped ? 128 : -1, false).problems.empty());
    // Forms that readers accept too.
    tensors["m.s_channel"] = tensors["m.s_channel"].flatten();
    tensors["m.bias"] = tensors["m.bias"].to(at::kBFloat16);
    if (!grouped) tensors["m.s_group"] = tensor::zeros({0}, at::kHalf);
    EXPECT_TRUE(check(tensors, grouped ? 128 : -1).problems.empty());
  }
}

TEST_F(QqqCheckTest, PartsAreExpectedInTypeAndShape) {
  EXPECT_SAYS(fault([](Tensors& t) { t.erase("m.B"); }), "m.B: expected Int [16, 128], found nothing");
  EXPECT_SAYS(fault([](Tensors& t) { t.erase("m.s_channel"); }), "m.s_channel: expected");
  EXPECT_SAYS(fault([](Tensors& t) { t.erase("m.s_group"); }), "m.s_group: no group scales are stored");
  EXPECT_SAYS(fault([](Tensors& t) { t.erase("m.bias"); }), "m.bias: expected Half [64], found nothing");
  EXPECT_SAYS(fault([](Tensors& t) { t["m.B"] = t["m.B"].to(at::kLong); }), "found Long [16, 128]");
  EXPECT_SAYS(fault([](Tensors& t) { t["m.B"] = t["m.B"].t().contiguous(); }), "found Int [128, 16]");
  EXPECT_SAYS(fault([](Tensors& t) { t["m.s_channel"] = t["m.s_channel"].to(at::kInt); }),
              "m.s_channel: expected");
  EXPECT_SAYS(fault([](Tensors& t) { t["m.s_group"] = t["m.s_group"].narrow(0, 0, 1).contiguous(); }),
              "m.s_group: expected");
  EXPECT_SAYS(fault([](Tensors& t) { t["m.bias"] = t["m.bias"].narrow(0, 0, 63).contiguous(); }),
              "m.bias: expected");
  EXPECT_SAYS(fault([](Tensors& t) { t["m.bias"] = t["m.bias"].narrow(0, 0, 63).contiguous(); }, false),
              "m.bias");
  // Everything that is wrong is said.
  Tensors tensors = module(true);
  tensors["m.B"] = tensor::zeros({2}, at::kFloat);
  tensors["m.s_channel"] = tensor::zeros({3}, at::kBool);
  tensors["m.s_group"].fill_(-1);
  tensors["m.bias"][3].fill_(kNan);
  EXPECT_EQ(check(tensors, 128).problems.size(), 4u);
}

TEST_F(QqqCheckTest, TheConfiguredGroupSizeMustBeTheStoredOne) {
  EXPECT_SAYS(check(module(true), -1).problems.at(0), "m.s_group: group scales are stored");
  EXPECT_SAYS(check(module(false), 128).problems.at(0), "m.s_group: no group scales are stored");
}

TEST_F(QqqCheckTest, ScalesMustBeOfUse) {
  for (const double bad : {kNan, kInf, -kInf, -0.01}) {
    EXPECT_SAYS(fault([&](Tensors& t) { t["m.s_channel"][0][9].fill_(bad); }),
                "m.s_channel: 1 value(s) negative or not finite, the first at position 9");
    EXPECT_SAYS(fault([&](Tensors& t) {
                  t["m.bias"][3].fill_(bad);
                  if (bad == -0.01) t["m.bias"][3].fill_(kInf);
                }),
                "m.bias: 1 value(s) not finite, the first at position 3");
  }
  // Place 40 of group 1 is output 5, whose codes are not all 0.
  EXPECT_SAYS(fault([](Tensors& t) { t["m.s_group"][1][40].fill_(kNan); }), "channel 5, group 1");
  EXPECT_SAYS(fault([](Tensors& t) { t["m.s_group"][1][40].fill_(kInf); }), "channel 5, group 1");
  EXPECT_SAYS(fault([](Tensors& t) { t["m.s_group"][1][40].fill_(-2); }), "m.s_group: 1 value(s) negative");
  EXPECT_SAYS(fault([](Tensors& t) { t["m.s_channel"].zero_(); }),
              "m.s_channel: 0 for 63 row(s) whose codes are not, the first is output 0");
}

TEST_F(QqqCheckTest, GroupsOfZerosMayHoldAnyScale) {
  for (const double scale : {0.0, kNan, kInf}) {
    Tensors tensors = module(true);
    tensors["m.s_group"][0][0].fill_(scale);  // output 0
    tensors["m.s_group"][1][8].fill_(scale);  // output 1
    EXPECT_TRUE(check(tensors, 128).problems.empty()) << scale;
  }
  // A channel of zeros may have a scale of 0; output 1 stands at place 1.
  for (const bool grouped : {false, true}) {
    Tensors tensors = module(grouped);
    tensors["m.s_channel"][0][1].zero_();
    EXPECT_TRUE(check(tensors, grouped ? 128 : -1).problems.empty());
    tensors["m.s_channel"][0][0].zero_();
    EXPECT_SAYS(check(tensors, grouped ? 128 : -1).problems.at(0), "0 for 1 row(s)");
  }
  // A ratio may round to 0: the group is then far below the row's largest weight.
  Tensors tensors = module(true);
  tensors["m.s_group"][1][40].zero_();
  EXPECT_TRUE(check(tensors, 128).problems.empty());
}

TEST_F(QqqCheckTest, IntegersThatLeaveInt8AreCounted) {
  Tensors tensors = module(true);
  tensors["m.s_group"].fill_(18.5);  // 7 · 18.5 leaves int8 on both sides
  int64_t expected = 0;
  const at::Tensor codes = qqq::unpack_codes(tensors["m.B"], kN, kK, true);
  expected = codes.abs().eq(7).sum().item<int64_t>();
  const ModuleCheck found = check(tensors, 128);
  EXPECT_TRUE(found.problems.empty());
  EXPECT_EQ(found.saturated, expected);
}

TEST_F(QqqCheckTest, DamageCannotBeTrusted) {
  // A BOOL tensor with bytes that are none, and types without arithmetic.
  const std::string header = R"({"m.B":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]},)"
                             R"("m.s_channel":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[4,8]},)"
                             R"("m.s_group":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[8,12]},)"
                             R"("m.bias":{"dtype":"U64","shape":[0,1099511627776],"data_offsets":[12,12]}})";
  write_bytes(folder_.path() / "config.json", "{}");
  write_bytes(folder_.path() / "model.safetensors",
              testing_support::safetensors_bytes(header, std::string(12, '\xff')));
  const auto found = qqq::check_module(Checkpoint(folder_.path()), "m", kN, kK, true, 128);
  EXPECT_EQ(found.problems.size(), 4u);
  EXPECT_TRUE(qqq_format().holds(Checkpoint(folder_.path()), "m"));
  EXPECT_FALSE(qqq_format().holds(Checkpoint(folder_.path()), "model"));
}

TEST(ExcludedModules, ByPatternAndByList) {
  const std::vector<std::string> modules{"model.layers.1.mlp.up_proj", "model.layers.11.mlp.up_proj",
                                         "lm_head"};
  const auto excluded = [&](const char* text) {
    return excluded_modules(Json::parse(text), modules, "config.json");
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(excluded("{}"), Names{});
  EXPECT_EQ(excluded("null"), Names{});
  EXPECT_EQ(excluded(R"({"dynamic": {"-:^model\\.layers\\.1\\.mlp\\.up_proj$": {}}})"), Names{modules[0]});
  // Patterns match from the start, as Python's re.match does; others than negative ones exclude nothing.
  EXPECT_EQ(excluded(R"({"dynamic": {"-:model.layers.1": {}}})"), (Names{modules[0], modules[1]}));
  EXPECT_EQ(excluded(R"({"dynamic": {"-:mlp|lm_head": {}}})"), Names{modules[2]});
  EXPECT_EQ(excluded(R"({"dynamic": {"+:.*": {"bits": 8}, ".*": {}}})"), Names{});
  EXPECT_EQ(excluded(R"({"modules_to_not_convert": ["lm_head", "layers.1", 3]})"),
            (Names{modules[0], modules[2]}));
  EXPECT_EQ(excluded(R"({"ignore": ["layers.1.mlp.up_proj", ""]})"), Names{modules[0]});
  const Error error = error_of([&] { excluded(R"({"dynamic": {"-:(": {}}})"); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
  EXPECT_SAYS(std::string(error.what()), "config.json: quantization_config: dynamic");
}

}  // namespace
}  // namespace gramian
