#include "runtime/generation_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

GenerationConfig read(const std::string& file, const Json& config = Json::object()) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "generation_config.json", file);
  return read_generation_config(folder.path(), {config, "config.json"});
}

TEST(GenerationConfigTest, GreedyUnlessTheFileSamples) {
  const TemporaryFolder none;
  const Json config = Json::object();
  EXPECT_EQ(sampler_options(read_generation_config(none.path(), {config, "config.json"}), {}).temperature, 0);
  EXPECT_EQ(sampler_options(read(R"({"temperature": 0.7})"), {}).temperature, 0);
  EXPECT_EQ(sampler_options(read(R"({"do_sample": true, "temperature": 0.7})"), {}).temperature, 0.7);
}

TEST(GenerationConfigTest, WhatAFileThatSamplesLeavesOut) {
  const SamplerOptions options = sampler_options(read(R"({"do_sample": true})"), {.seed = 9});
  EXPECT_EQ(options.temperature, 1.0);
  EXPECT_EQ(options.top_k, 50);
  EXPECT_EQ(options.top_p, 1.0);
  EXPECT_EQ(options.repetition_penalty, 1.0);
  EXPECT_EQ(options.seed, 9u);
}

TEST(GenerationConfigTest, FlagsOverrideTheFile) {
  const GenerationConfig config = read(
      R"({"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05})");
  const SamplerOptions own = sampler_options(config, {});
  EXPECT_EQ(describe(own), "temperature 0.7, top-k 20, top-p 0.8, seed 0, repetition penalty 1.05");
  const SamplerOptions asked = sampler_options(
      config, {.temperature = 0.5, .top_k = 0, .top_p = 1.0, .repetition_penalty = 1.0, .seed = 3});
  EXPECT_EQ(describe(asked), "temperature 0.5, seed 3");
  EXPECT_EQ(describe(sampler_options(config, {.temperature = 0.0})), "greedy, repetition penalty 1.05");
}

TEST(GenerationConfigTest, EndOfTextIsANumberOrAList) {
  EXPECT_EQ(read(R"({"eos_token_id": 7})").eos, (std::vector<int64_t>{7}));
  EXPECT_EQ(read(R"({"eos_token_id": [7, 9]})", {{"eos_token_id", 1}}).eos, (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(read("{}", {{"eos_token_id", 1}}).eos, (std::vector<int64_t>{1}));
  EXPECT_EQ(read(R"({"eos_token_id": null})").eos, std::vector<int64_t>{});
}

TEST(GenerationConfigTest, NamesWhatItDoesNotHonour) {
  const std::string file =
      R"({"num_beams": 4, "min_p": 0.05, "no_repeat_ngram_size": 3, "typical_p": 1.0, "num_beam_groups": 1,
      "suppress_tokens": [], "begin_suppress_tokens": [220], "guidance_scale": null, "max_new_tokens": 7})";
  EXPECT_EQ(read(file).ignored, (std::vector<std::string>{"num_beams", "min_p", "no_repeat_ngram_size",
                                                          "begin_suppress_tokens"}));
}

TEST(GenerationConfigTest, DamageIsNamed) {
  for (const char* file :
       {"[]", "{", R"({"do_sample": 1})", R"({"temperature": -1})", R"({"temperature": "hot"})",
        R"({"top_k": -2})", R"({"top_k": 1.5})", R"({"top_p": 1.2})", R"({"repetition_penalty": 0})",
        R"({"eos_token_id": "x"})", R"({"eos_token_id": [1, -1]})", R"({"eos_token_id": [[1]]})",
        R"({"eos_token_id": 1.5})"}) {
    const Error error = error_of([&] { read(file); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << file;
    EXPECT_NE(std::string(error.what()).find("generation_config.json"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gramian
