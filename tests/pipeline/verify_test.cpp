#include "pipeline/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "formats/qqq_format.h"
#include "pipeline/solve_module.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

namespace fs = std::filesystem;
using testing_support::error_of;
using testing_support::random_normal;
using testing_support::TemporaryFolder;
using testing_support::TinyModel;
using testing_support::write_bytes;
using Json = nlohmann::ordered_json;
using Problems = std::vector<std::string>;

const double kNan = std::numeric_limits<double>::quiet_NaN();
const char kUp[] = "model.layers.1.mlp.up_proj", kDown[] = "model.layers.0.mlp.down_proj";

// A model whose layers are quantized by plain rounding, as far as `plan` says.
struct PackedModel : TinyModel {
  explicit PackedModel(int64_t group_size = 128, int64_t intermediate = 384)
      : TinyModel({.hidden = 256,
                   .intermediate = intermediate,
                   .heads = 4,
                   .kv_heads = 2,
                   .layers = 2,
                   .vocab = 20}) {
    source.tensors = tensors;
    source.config = config;
    plan = make_plan(source.open(), qqq_format(), {.grid = {.group_size = group_size, .mse = 0}}, true);
    ThreadPool pool(1);
    const FallbackOptions fallback;
    for (const auto& layer : plan.layers) {
      for (const PlannedModule& module : layer) {
        if (!module.quantize) continue;
        const std::string& name = module.linear.name;
        const PackSource weight{name, module.shape(), tensors.at(name + ".weight"), {}};
        const SolveSettings settings{qqq_format(), module.solve, fallback};
        for (const auto& [part, tensor] : solve_module(weight, {}, settings, pool).packed)
          tensors[name + "." + part] = tensor;
        tensors.erase(name + ".weight");
      }
    }
    config["quantization_config"] =
        qqq_format().config({.solve = plan.solve, .method = "rtn", .skipped = plan.skipped(), .plain = {}});
  }
  TinyModel source;
  QuantizePlan plan;
};

std::shared_ptr<const Checkpoint> open(const fs::path& folder) {
  return std::make_shared<const Checkpoint>(folder);
}

Verification verify_folder(const fs::path& folder, bool copies = true) {
  ThreadPool pool(2);
  Log log(LogLevel::quiet);
  return verify(open(folder), {.copies = copies}, pool, log);
}

std::string joined(const Problems& problems) {
  std::string all;
  for (const std::string& problem : problems) all += problem + "\n";
  return all;
}

#define EXPECT_SOUND(found) EXPECT_EQ(joined((found).problems), "")
// One problem, with this in its line.
#define EXPECT_ONE(found, part)                                    \
  do {                                                             \
    const std::string all = joined((found).problems);              \
    EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 1) << all; \
    EXPECT_NE(all.find(part), std::string::npos) << all;           \
  } while (false)

TEST(Verify, SoundCheckpointsPass) {
  for (const int64_t group_size : {int64_t{128}, int64_t{-1}}) {
    PackedModel packed(group_size);
    const Verification found = verify_folder(packed.save());
    EXPECT_SOUND(found);
    ASSERT_TRUE(found.stored);
    EXPECT_EQ(found.stored->grid.group_size, group_size);
    EXPECT_EQ(found.modules, 14);
    EXPECT_EQ(found.int8_saturated, 0);
  }
  TinyModel plain;
  const Verification found = verify_folder(plain.save());
  EXPECT_SOUND(found);
  EXPECT_FALSE(found.stored);
  EXPECT_EQ(found.modules, 0);
}

TEST(Verify, LayersLeftOutMustBeExcluded) {
  // 320 columns fit no group of 128: two down_proj stay plain.
  PackedModel packed(128, 320);
  EXPECT_EQ(packed.plan.skipped().size(), 2u);
  const Verification found = verify_folder(packed.save());
  EXPECT_SOUND(found);
  EXPECT_EQ(found.modules, 12);
  packed.config["quantization_config"].erase("dynamic");
  const Problems problems = verify_folder(packed.save()).problems;
  EXPECT_EQ(
      problems,
      (Problems{str(kDown, ": is not quantized, and config.json does not exclude it"),
                "model.layers.1.mlp.down_proj: is not quantized, and config.json does not exclude it"}));
  packed.config["quantization_config"]["modules_to_not_convert"] = {"down_proj"};
  EXPECT_SOUND(verify_folder(packed.save()));
}

TEST(Verify, ModulesAreStoredOnceAndAsConfigured) {
  PackedModel packed;
  const auto tensors = packed.tensors;
  packed.tensors[str(kUp, ".weight")] = packed.source.tensors.at(str(kUp, ".weight"));
  EXPECT_ONE(verify_folder(packed.save()), str(kUp, ": is stored twice"));
  packed.tensors = tensors;
  packed.config["quantization_config"]["dynamic"] = {
      {"-:^model\\.layers\\.1\\.mlp\\.up_proj$", Json::object()}};
  EXPECT_ONE(verify_folder(packed.save()), str(kUp, ": is quantized, and excluded"));
  packed.config["quantization_config"]["dynamic"] = {{"-:(", Json::object()}};
  EXPECT_ONE(verify_folder(packed.save()), "dynamic");
  packed.config["quantization_config"].erase("dynamic");

  packed.tensors["lm_head.B"] = packed.tensors.at(str(kUp, ".B"));
  packed.tensors["lm_head.s_channel"] = packed.tensors.at(str(kUp, ".s_channel"));
  packed.tensors["lm_head.s_group"] = packed.tensors.at(str(kUp, ".s_group"));
  const Problems head = verify_folder(packed.save()).problems;
  EXPECT_EQ(head, (Problems{"\"lm_head\": is quantized, but no linear layer of this model",
                            "lm_head: is stored twice, as .weight and quantized"}));
  packed.tensors = tensors;
  packed.config["quantization_config"]["lm_head"] = true;
  EXPECT_ONE(verify_folder(packed.save()), "lm_head: is not quantized");
}

TEST(Verify, EveryDamageIsListed) {
  PackedModel packed;
  packed.tensors.erase(str(kUp, ".s_channel"));
  packed.tensors[str(kDown, ".B")] = tensor::zeros({24, 512}, at::kFloat);
  packed.tensors["model.layers.0.self_attn.q_proj.s_channel"][0][3].fill_(kNan);
  packed.tensors.erase("model.layers.0.self_attn.o_proj.B");
  packed.tensors.erase("model.layers.0.self_attn.o_proj.s_channel");
  packed.tensors.erase("model.layers.0.self_attn.o_proj.s_group");
  packed.tensors["model.norm.weight"][5].fill_(kNan);
  packed.tensors["model.embed_tokens.weight"] = random_normal({19, 256}, 3);
  const std::string all = joined(verify_folder(packed.save()).problems);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 6) << all;
  for (const std::string& part :
       {str(kUp, ".s_channel: expected Float [1, 384], found nothing"),
        str(kDown, ".B: expected Int [24, 512], found Float [24, 512]"),
        std::string("q_proj.s_channel: 1 value(s) negative or not finite"),
        std::string("no tensor \"model.layers.0.self_attn.o_proj.weight\""),
        std::string("\"model.norm.weight\": 1 value(s) are NaN or infinite, the first at [5]"),
        std::string("tensor \"model.embed_tokens.weight\" has shape [19, 256], expected [20, 256]")}) {
    EXPECT_NE(all.find(part), std::string::npos) << part << " in\n" << all;
  }
}

TEST(Verify, ConfigurationsMustAgree) {
  PackedModel packed;
  const fs::path folder = packed.save();
  const auto write_second = [&](const Json& fields) {
    write_bytes(folder / "quantize_config.json", fields.dump());
  };
  Json fields = packed.config["quantization_config"];
  fields["meta"]["quantizer"] = "another";
  fields["more"] = {1, 2};
  write_second(fields);
  EXPECT_SOUND(verify_folder(folder));
  fields["group_size"] = -1;
  fields["bits"] = 8;
  write_second(fields);
  const Problems problems = verify_folder(folder).problems;
  ASSERT_EQ(problems.size(), 2u) << joined(problems);
  EXPECT_NE(problems[0].find("\"bits\" is 8, config.json says 4"), std::string::npos) << problems[0];
  EXPECT_NE(problems[1].find("\"group_size\" is -1, config.json says 128"), std::string::npos) << problems[1];
  write_second({1});
  EXPECT_ONE(verify_folder(folder), "expected two objects");
  write_bytes(folder / "quantize_config.json", "{");
  EXPECT_ONE(verify_folder(folder), "bad JSON");
  fs::remove(folder / "quantize_config.json");

  // All modules that have more than one group contradict the configured row scales.
  packed.config["quantization_config"]["group_size"] = -1;
  EXPECT_EQ(verify_folder(packed.save()).problems.size(), 14u);
  packed.config["quantization_config"]["group_size"] = 64;
  EXPECT_ONE(verify_folder(packed.save()), "group_size is 64");
  packed.config.erase("quantization_config");
  EXPECT_ONE(verify_folder(packed.save()), "no quantization_config");
  // The original project's three fields are enough.
  packed.config["quantization_config"] = {{"quant_method", "qqq"}, {"wbits", 4}, {"group_size", 128}};
  EXPECT_SOUND(verify_folder(packed.save()));
}

TEST(Verify, AnUnreadableArchitectureLeavesTheRestChecked) {
  PackedModel packed;
  packed.config["hidden_size"] = "wide";
  packed.tensors[str(kUp, ".s_group")][0][0].fill_(kNan);
  const Problems problems = verify_folder(packed.save()).problems;
  ASSERT_EQ(problems.size(), 2u) << joined(problems);
  EXPECT_NE(problems[0].find("'hidden_size'"), std::string::npos) << problems[0];
  EXPECT_NE(problems[1].find(str(kUp, ".s_group")), std::string::npos) << problems[1];
}

TEST(Verify, WhatIsNotBuiltIsRefused) {
  TinyModel plain;
  plain.config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
  EXPECT_EQ(error_of([&] { verify_folder(plain.save()); }).kind(), ErrorKind::unsupported);
  plain.config.erase("quantization_config");
  plain.config["model_type"] = "mamba";
  EXPECT_EQ(error_of([&] { verify_folder(plain.save()); }).kind(), ErrorKind::unsupported);
}

TEST(Verify, TokenizerAndIndex) {
  TinyModel plain;
  for (const char* damaged : {"", "{\"model\": ", "[]"}) {
    write_bytes(plain.save() / "tokenizer.json", damaged);
    EXPECT_ONE(verify_folder(plain.folder.path()), "tokenizer.json");
  }
  EXPECT_SOUND(verify_folder(plain.folder.path(), false));
  // A tokenizer of a kind that is not built is not damaged.
  write_bytes(plain.folder.path() / "tokenizer.json",
              R"({"version": "1.0", "added_tokens": [], "model": {"type": "Unigram", "vocab": []}})");
  EXPECT_SOUND(verify_folder(plain.folder.path()));
  Json index;
  index["metadata"]["total_size"] = 1;
  for (const auto& [name, tensor] : plain.tensors) {
    if (name != "model.norm.weight") index["weight_map"][name] = "model.safetensors";
  }
  write_bytes(plain.folder.path() / "model.safetensors.index.json", index.dump());
  EXPECT_EQ(verify_folder(plain.folder.path()).problems.size(), 2u);
}

TEST(Verify, CopiedValuesAreReadOnRequest) {
  TinyModel plain;
  plain.tensors["unknown"] = tensor::full({3, 2}, -std::numeric_limits<double>::infinity(), at::kDouble);
  EXPECT_ONE(verify_folder(plain.save()), "\"unknown\": 6 value(s) are NaN or infinite, the first at [0, 0]");
  EXPECT_SOUND(verify_folder(plain.folder.path(), false));
}

// Random damage of every file, headers and texts above all: it may pass, be listed or be refused as bad input, and nothing
// else. A failing seed is printed.
TEST(Verify, SurvivesRandomDamage) {
  PackedModel packed;
  const fs::path folder = packed.save();
  write_bytes(folder / "quantize_config.json", packed.config["quantization_config"].dump());
  Json index;
  for (const auto& [name, tensor] : packed.tensors) index["weight_map"][name] = "model.safetensors";
  index["metadata"]["total_size"] = 1;
  write_bytes(folder / "model.safetensors.index.json", index.dump());
  const std::vector<std::string> files{"model.safetensors", "config.json", "quantize_config.json",
                                       "model.safetensors.index.json"};
  std::map<std::string, int> outcomes;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::string& name = files[seed % files.size()];
    const std::string good = testing_support::file_bytes(folder / name);
    std::string bad = good;
    // Of the weights, the header half of the time.
    const size_t range = name == files[0] && random() % 2 == 0 ? 8000 : bad.size();
    for (uint32_t flips = 1 + random() % 3; flips > 0; --flips)
      bad[random() % range] = static_cast<char>(random() % 3 == 0 ? '0' + random() % 10 : random() % 256);
    if (seed % 16 == 0) bad.resize(random() % bad.size());
    write_bytes(folder / name, bad);
    try {
      ++outcomes[verify_folder(folder).problems.size() <= 1 ? "passed" : "listed"];
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2) << error.what();
      ++outcomes["refused"];
    }
    write_bytes(folder / name, good);
  }
  // total_size is wrong from the start: one problem is none of the damage's.
  for (const char* outcome : {"passed", "listed", "refused"}) EXPECT_GT(outcomes[outcome], 10) << outcome;
}

TEST(CompareWithSource, EveryTensorIsCopiedOrReplaced) {
  PackedModel packed;
  packed.source.tensors["unknown"] = packed.tensors["unknown"] = random_normal({5}, 9);
  const auto differences = [&] {
    return compare_with_source(*open(packed.save()), *open(packed.source.save()), packed.plan);
  };
  EXPECT_EQ(joined(differences()), "");
  const auto tensors = packed.tensors;
  const auto expect_one = [&](const std::string& line) {
    EXPECT_EQ(joined(differences()), line + "\n");
    packed.tensors = tensors;
  };
  const std::string lost = ": is neither copied byte for byte nor replaced by a quantized module";
  const std::string foreign = ": is neither of the source nor of a quantized module";
  packed.tensors["unknown"] = packed.tensors["unknown"].clone();
  packed.tensors["unknown"][4].add_(1);
  expect_one("\"unknown\"" + lost);
  packed.tensors["unknown"] = packed.tensors["unknown"].to(at::kDouble);
  expect_one("\"unknown\"" + lost);
  packed.tensors["unknown"] = packed.tensors["unknown"].unsqueeze(0);
  expect_one("\"unknown\"" + lost);
  packed.tensors.erase("unknown");
  expect_one("\"unknown\"" + lost);
  packed.tensors["new"] = tensor::zeros({1}, at::kFloat);
  expect_one("\"new\"" + foreign);
  packed.tensors.erase(str(kUp, ".B"));
  expect_one(str("\"", kUp, ".weight\"", lost));
  packed.tensors[str(kUp, ".weight")] = packed.source.tensors.at(str(kUp, ".weight"));
  expect_one(str("\"", kUp, ".weight\"", foreign));
}

}  // namespace
}  // namespace gramian
