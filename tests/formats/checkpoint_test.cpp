#include "formats/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "support/files.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

namespace fs = std::filesystem;
using testing_support::error_of;
using testing_support::file_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

bool holds(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() { put("config.json", R"({"model_type": "llama", "hidden_size": 4})"); }

  void put(const std::string& name, const std::string& text) { write_bytes(root / name, text); }
  // A file with one f32 tensor [2] of this value per name.
  void put_weights(const std::string& file, const std::vector<std::string>& names, double value = 1) {
    std::map<std::string, at::Tensor> tensors;
    for (const std::string& name : names) tensors[name] = tensor::full({2}, value, at::kFloat);
    save_safetensors(root / file, tensors);
  }
  void put_index(const std::map<std::string, std::string>& weight_map) {
    put("model.safetensors.index.json",
        nlohmann::json{{"metadata", {{"total_size", 0}}}, {"weight_map", weight_map}}.dump());
  }
  Error refusal() {
    return error_of([&] { Checkpoint{root}; });
  }

  TemporaryFolder folder;
  fs::path root = folder.path();
};

#define EXPECT_REFUSED(error, error_kind, text)                   \
  do {                                                            \
    const Error refused = (error);                                \
    EXPECT_EQ(refused.kind(), error_kind) << refused.what();      \
    EXPECT_TRUE(holds(refused, text)) << refused.what();          \
    EXPECT_TRUE(holds(refused, root.string())) << refused.what(); \
  } while (false)

TEST_F(CheckpointTest, SingleFile) {
  put_weights("model.safetensors", {"a", "b"});
  const Checkpoint checkpoint(root);
  EXPECT_EQ(checkpoint.folder(), root);
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_TRUE(checkpoint.contains("a"));
  EXPECT_FALSE(checkpoint.contains("c"));
  EXPECT_EQ(checkpoint.tensor("a").shape, std::vector<int64_t>{2});
  EXPECT_EQ(checkpoint.tensor("b", {2}).to_tensor()[1].item<float>(), 1.0F);
  EXPECT_EQ(checkpoint.config().begin().key(), "model_type");
  EXPECT_REFUSED(error_of([&] { checkpoint.tensor("c"); }), ErrorKind::corrupt_data, "\"c\"");
  const Error shape = error_of([&] { checkpoint.tensor("a", {2, 1}); });
  EXPECT_REFUSED(shape, ErrorKind::corrupt_data, "\"a\" has shape [2], expected [2, 1]");
}

TEST_F(CheckpointTest, OneFileOfAnotherName) {
  put_weights("weights.safetensors", {"a"});
  EXPECT_TRUE(Checkpoint(root).contains("a"));
  // model.safetensors wins.
  put_weights("model.safetensors", {"b"});
  EXPECT_FALSE(Checkpoint(root).contains("a"));
}

TEST_F(CheckpointTest, ShardsOfAnIndexWin) {
  put_weights("model.safetensors", {"stale"});
  put_weights("model-00001-of-00002.safetensors", {"a", "unlisted"}, 1);
  put_weights("model-00002-of-00002.safetensors", {"b"}, 2);
  put_index({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}});
  Checkpoint opened(root);
  const Checkpoint checkpoint(std::move(opened));
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_TRUE(checkpoint.contains("unlisted"));
  EXPECT_FALSE(checkpoint.contains("stale"));
  EXPECT_EQ(checkpoint.tensor("b").to_tensor()[0].item<float>(), 2.0F);
}

TEST_F(CheckpointTest, ReadsWhatTheWriterWrites) {
  const std::vector<PlannedTensor> plan{
      {"x", DType::f32, {2}}, {"y", DType::f32, {2}}, {"z", DType::f32, {2}}};
  ModelWriter writer(root, plan, 8);
  for (const PlannedTensor& planned : plan)
    writer.write(planned.name, tensor::full({2}, planned.name[0], at::kFloat));
  writer.finish();
  const Checkpoint checkpoint(root);
  ASSERT_EQ(checkpoint.tensors().size(), 3u);
  for (const PlannedTensor& planned : plan) {
    EXPECT_EQ(checkpoint.tensor(planned.name, {2}).to_tensor()[0].item<float>(),
              static_cast<float>(planned.name[0]));
  }
}

TEST_F(CheckpointTest, EveryMissingShardIsNamed) {
  std::map<std::string, std::string> map;
  std::vector<std::string> missing;
  for (int i = 10; i < 40; ++i) {
    const std::string file = str("model-000", i, "-of-00040.safetensors");
    map[str("t", i)] = file;
    if (i == 12) {
      put_weights(file, {"t12"});
    } else {
      missing.push_back(file);
    }
  }
  put_index(map);
  const Error error = refusal();
  EXPECT_REFUSED(error, ErrorKind::invalid_argument, "29 of 30 files");
  for (const std::string& file : missing) EXPECT_TRUE(holds(error, file)) << error.what();
  EXPECT_FALSE(holds(error, "model-00012"));
  // A dangling link is missing too.
  put_index({{"a", "linked.safetensors"}});
  fs::create_symlink(root / "nowhere", root / "linked.safetensors");
  EXPECT_REFUSED(refusal(), ErrorKind::invalid_argument, "linked.safetensors");
}

TEST_F(CheckpointTest, IndexAndShardsMustAgree) {
  put_weights("1.safetensors", {"a", "b"});
  put_weights("2.safetensors", {"c"});
  put_index({{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "2.safetensors"}, {"d", "2.safetensors"}});
  EXPECT_REFUSED(refusal(), ErrorKind::corrupt_data, "2 tensors are not in the shard");
  EXPECT_REFUSED(refusal(), ErrorKind::corrupt_data, "\"b\", \"d\"");

  std::map<std::string, std::string> many{{"a", "1.safetensors"}};
  for (int i = 10; i < 35; ++i) many[str("t", i)] = "2.safetensors";
  put_index(many);
  EXPECT_REFUSED(refusal(), ErrorKind::corrupt_data, "\"t19\" and 15 more");
}

TEST_F(CheckpointTest, TensorInTwoShards) {
  put_weights("1.safetensors", {"a", "b"});
  put_weights("2.safetensors", {"b", "c"});
  put_index({{"a", "1.safetensors"}, {"c", "2.safetensors"}});
  EXPECT_REFUSED(refusal(), ErrorKind::corrupt_data, "1 tensors stand in two shards: \"b\"");
}

TEST_F(CheckpointTest, EveryDamagedShardIsNamed) {
  put_weights("1.safetensors", {"a"});
  put("2.safetensors", "");
  put("3.safetensors", "version https://git-lfs.github.com/spec/v1\nsize 99\n");
  put_index({{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "3.safetensors"}});
  const Error error = refusal();
  EXPECT_REFUSED(error, ErrorKind::corrupt_data, "2 of 3 weight files");
  EXPECT_REFUSED(error, ErrorKind::corrupt_data,
                 (root / "2.safetensors").string() + ": expected a safetensors file, found an empty");
  EXPECT_REFUSED(error, ErrorKind::corrupt_data,
                 (root / "3.safetensors").string() + ": expected a safetensors file, found a git-LFS");
}

TEST_F(CheckpointTest, IndexStaysInsideTheFolder) {
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors",
                           "sub\\x.safetensors", "..", "", ".safetensors", "pytorch_model.bin"}) {
    put_index({{"a", name}});
    EXPECT_REFUSED(refusal(), ErrorKind::corrupt_data,
                   "expected the name of a .safetensors file in the same folder for tensor \"a\"");
  }
  put("model.safetensors.index.json", R"({"weight_map": {"a": "x\u0000.safetensors"}})");
  EXPECT_REFUSED(refusal(), ErrorKind::corrupt_data, "x\\x00.safetensors");
}

TEST_F(CheckpointTest, MalformedIndex) {
  put_weights("1.safetensors", {"a"});
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "bad JSON"},
      {"[]", "expected a JSON object, found array"},
      {"{}", "expected an object \"weight_map\""},
      {R"({"weight_map": []})", "expected an object \"weight_map\""},
      {R"({"weight_map": {}})", "names no tensor"},
      {R"({"weight_map": {"a": 1}})", "found number"},
      {R"({"weight_map": {"a": "1.safetensors", "a": "1.safetensors"}})", "duplicate key \"a\""},
      {R"({"weight_map": {"a": "1.safetensors"}, "weight_map": {}})", "duplicate key \"weight_map\""}};
  for (const auto& [text, message] : cases) {
    put("model.safetensors.index.json", text);
    EXPECT_REFUSED(refusal(), ErrorKind::corrupt_data, message);
  }
}

TEST_F(CheckpointTest, FolderWithoutSafetensors) {
  EXPECT_REFUSED(refusal(), ErrorKind::invalid_argument, "found only \"config.json\"");
  put("model.gguf", "GGUF");
  EXPECT_REFUSED(refusal(), ErrorKind::invalid_argument, "\"model.gguf\"");
  put("pytorch_model.bin", "PK");
  EXPECT_REFUSED(refusal(), ErrorKind::invalid_argument,
                 "\"pytorch_model.bin\" (.bin, .pt and .pth are pickles");
  EXPECT_REFUSED(refusal(), ErrorKind::invalid_argument, "convert the model to safetensors");
}

TEST_F(CheckpointTest, ShardsWithoutTheirIndex) {
  put_weights("model-00001-of-00002.safetensors", {"a"});
  EXPECT_REFUSED(refusal(), ErrorKind::invalid_argument, "no model.safetensors.index.json");
  put_weights("model-00002-of-00002.safetensors", {"b"});
  EXPECT_REFUSED(refusal(), ErrorKind::invalid_argument,
                 "\"model-00001-of-00002.safetensors\", \"model-00002-of-00002.safetensors\"");
  fs::remove(root / "model-00001-of-00002.safetensors");
  fs::rename(root / "model-00002-of-00002.safetensors", root / "model-00001-of-00001.safetensors");
  EXPECT_TRUE(Checkpoint(root).contains("b"));
}

TEST_F(CheckpointTest, NotAModelFolder) {
  EXPECT_REFUSED(error_of([&] { Checkpoint{root / "absent"}; }), ErrorKind::invalid_argument,
                 "no such folder");
  EXPECT_REFUSED(error_of([&] { Checkpoint{root / "config.json"}; }), ErrorKind::invalid_argument,
                 "expected a folder");
  put_weights("model.safetensors", {"a"});
  put("config.json", "[1]");
  EXPECT_REFUSED(refusal(), ErrorKind::corrupt_data, "expected a JSON object, found array");
  put("config.json", "{\n  \"a\": 1,\n  \"b\" 2\n}");
  EXPECT_REFUSED(refusal(), ErrorKind::corrupt_data, "config.json: JSON line 3, column 7: bad JSON");
  fs::remove(root / "config.json");
  EXPECT_REFUSED(refusal(), ErrorKind::invalid_argument, "no config.json");
}

using Paths = std::vector<fs::path>;

TEST_F(CheckpointTest, SideFiles) {
  put_weights("model.safetensors", {"a"});
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "x.pt", "x.pth", "x.gguf",
                           "quantize_config.json", "quant_config.json", "other.safetensors",
                           "other.safetensors.index.json", "tokenizer.json", "chat_template.jinja",
                           "generation_config.json", "modeling_x.py", ".gitattributes", "unknown"}) {
    put(name, "x");
  }
  const SideFiles side = Checkpoint(root).side_files();
  EXPECT_EQ(side.files, (Paths{"chat_template.jinja", "generation_config.json", "modeling_x.py",
                               "tokenizer.json", "unknown"}));
  EXPECT_EQ(side.left_out,
            (Paths{".gitattributes", "other.safetensors", "other.safetensors.index.json", "pytorch_model.bin",
                   "pytorch_model.bin.index.json", "x.gguf", "x.pt", "x.pth"}));
}

TEST_F(CheckpointTest, SideFilesInFoldersAndBehindLinks) {
  put_weights("model.safetensors", {"a"});
  for (const char* folder : {"1_Pooling", "2_Dense", "assets/deep/er", ".git", "quantized", "empty"})
    fs::create_directories(root / folder);
  // All that is in a sub-folder belongs to it, also what would be this model's own at the top.
  for (const char* name : {"1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin",
                           "assets/deep/er/x", "assets/.hidden", ".git/config"})
    put(name, "x");
  put(str("quantized/", kReportName), "{}");
  put("quantized/config.json", "{}");
  const TemporaryFolder elsewhere;
  write_bytes(elsewhere.path() / "blob", "x");
  fs::create_symlink(elsewhere.path() / "blob", root / "linked.json");
  fs::create_symlink(elsewhere.path() / "gone", root / "dangling.json");
  fs::create_directory_symlink(root, root / "loop");
  ASSERT_EQ(::mkfifo((root / "pipe").c_str(), 0600), 0);
  const SideFiles side = Checkpoint(root).side_files();
  EXPECT_EQ(side.files, (Paths{"1_Pooling/config.json", "2_Dense/model.safetensors",
                               "2_Dense/pytorch_model.bin", "assets/deep/er/x", "linked.json"}));
  EXPECT_EQ(side.left_out, (Paths{".git", "assets/.hidden", "dangling.json", "loop", "pipe", "quantized"}));
}

TEST_F(CheckpointTest, IndexFaults) {
  put_weights("model-1.safetensors", {"a", "b"});
  put_weights("model-2.safetensors", {"c"});
  const auto faults = [&](const std::string& metadata, const std::string& map) {
    put("model.safetensors.index.json", R"({"metadata": )" + metadata + R"(, "weight_map": )" + map + "}");
    return Checkpoint(root).index_faults();
  };
  const std::string all =
      R"({"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"})";
  uint64_t bytes = 0;
  put("model.safetensors.index.json", R"({"weight_map": )" + all + "}");
  const Checkpoint whole(root);
  for (const auto& [name, tensor] : whole.tensors()) bytes += tensor.bytes.size();
  for (const std::string& metadata :
       {std::string("{}"), std::string("null"), str(R"({"total_size": )", bytes, "}"),
        str(R"({"total_size": )", bytes, R"(.0, "more": 1})")}) {
    EXPECT_EQ(faults(metadata, all), std::vector<std::string>{}) << metadata;
  }
  for (const std::string& size :
       {str(bytes + 1), str("\"", bytes, "\""), std::string("-1"), std::string("[]")}) {
    const auto found = faults(R"({"total_size": )" + size + "}", all);
    ASSERT_EQ(found.size(), 1u) << size;
    EXPECT_NE(found[0].find(str("the tensors have ", bytes, " bytes")), std::string::npos) << found[0];
  }
  const auto unnamed = faults("{}", R"({"a": "model-1.safetensors", "c": "model-2.safetensors"})");
  ASSERT_EQ(unnamed.size(), 1u);
  EXPECT_NE(unnamed[0].find("does not name tensor \"b\" of model-1.safetensors"), std::string::npos)
      << unnamed[0];
  fs::remove(root / "model.safetensors.index.json");
  fs::remove(root / "model-2.safetensors");
  EXPECT_TRUE(Checkpoint(root).index_faults().empty());
}

TEST(Checkpoint, OpensTheBundledModel) {
  const Checkpoint checkpoint("models/tinystories");
  size_t bytes = 0;
  for (const auto& [name, stored] : checkpoint.tensors()) {
    EXPECT_EQ(stored.to_tensor().nbytes(), stored.bytes.size()) << name;
    bytes += stored.bytes.size();
  }
  EXPECT_GT(bytes, 0u);
  EXPECT_LT(bytes, fs::file_size("models/tinystories/model.safetensors"));
  EXPECT_FALSE(checkpoint.side_files().files.empty());
}

TEST(ParseJson, KeepsKeysInOrderAndValues) {
  const auto json = parse_json(
      R"({"z": [1, -2, 2.5, true, null, "ü\n"], "a": {"y": {}, "b": []}, "m": 18446744073709551615})", "x");
  EXPECT_EQ(json.dump(), R"({"z":[1,-2,2.5,true,null,"ü\n"],"a":{"y":{},"b":[]},"m":18446744073709551615})");
  EXPECT_EQ(parse_json(" 3 ", "x"), 3);
}

TEST(ParseJson, NamesPlaceAndFault) {
  const auto message = [](const std::string& text) {
    const Error error = error_of([&] { parse_json(text, "some.json"); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return std::string(error.what());
  };
  const auto expect = [&](const std::string& text, const std::string& part) {
    const std::string found = message(text);
    EXPECT_NE(found.find(part), std::string::npos) << found;
    EXPECT_TRUE(found.starts_with("some.json: ")) << found;
  };
  expect("{\n \"a\": 1,\n  \"a\": 2}", "line 3, column 5: duplicate key \"a\"");
  expect(R"({"o": [{"k": 1, "k": 1}]})", "line 1, column 19: duplicate key \"k\"");
  expect("{\"a\": 1,}", "line 1, column 9:");
  expect("", "line 1, column 0: bad JSON");
  expect("{} {}", "line 1, column 4:");
  expect(std::string("{\"a\": 1}\0{", 10), "line 1, column 8: a NUL byte");
  expect("{\"a\": \"\xff\"}", "bad JSON");
  expect("{\"a\": NaN}", "bad JSON");
  expect("{'a': 1}", "bad JSON");
  expect("// c\n{}", "bad JSON");
  expect(std::string(129, '[') + std::string(129, ']'), "nested deeper than 128");
  expect(std::string(10'000'000, '['), "nested deeper than 128");
  EXPECT_LT(message("[" + std::string(1'000'000, 'x')).size(), 1000u);
  EXPECT_LT(
      message("{\"" + std::string(100'000, 'k') + "\":1,\"" + std::string(100'000, 'k') + "\":1}").size(),
      1000u);
  EXPECT_NO_THROW(parse_json(std::string(128, '[') + std::string(128, ']'), "x"));
}

TEST(ParseJson, SiblingsMayShareKeys) {
  EXPECT_EQ(parse_json(R"([{"a": 1}, {"a": {"a": 2}}])", "x")[1]["a"]["a"], 2);
}

TEST(ParseJson, ManyKeysTakeLinearTime) {
  // Quadratic insertion would take minutes.
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += str(i == 0 ? "" : ",", "\"key.", i, "\":", i);
  const auto start = std::chrono::steady_clock::now();
  const auto json = parse_json(text + "}", "x");
  EXPECT_EQ(json.size(), 300'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace gramian
