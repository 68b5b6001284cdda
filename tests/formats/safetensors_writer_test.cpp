#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "formats/safetensors.h"
#include "support/files.h"
#include "support/patterned.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

namespace fs = std::filesystem;
using testing_support::bytes_of;
using testing_support::error_of;
using testing_support::file_bytes;
using testing_support::patterned;
using testing_support::safetensors_bytes;
using testing_support::TemporaryFolder;

class ModelWriterTest : public testing::Test {
 protected:
  TemporaryFolder folder;
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder.path()))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }
};

void expect_bug(const Error& error, const std::string& text) {
  EXPECT_EQ(error.kind(), ErrorKind::internal) << error.what();
  EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
}

TEST_F(ModelWriterTest, OneFileInPlannedOrder) {
  const std::vector<PlannedTensor> plan{
      {"z", DType::f32, {2}}, {"a\"\\", DType::i8, {4}}, {"m", DType::f16, {0}}};
  ModelWriter writer(folder.path(), plan, 12);
  EXPECT_EQ(writer.total_bytes(), 12u);
  writer.write("m", patterned(DType::f16, {0}));
  writer.write("a\"\\", patterned(DType::i8, {4}));
  writer.write("z", patterned(DType::f32, {2}));
  writer.finish();
  EXPECT_EQ(names(), std::vector<std::string>{"model.safetensors"});
  std::string header =
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a\"\\":{"dtype":"I8","shape":[4],"data_offsets":[8,12]},)"
      R"("m":{"dtype":"F16","shape":[0],"data_offsets":[12,12]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string data = bytes_of(patterned(DType::f32, {2})) + bytes_of(patterned(DType::i8, {4}));
  EXPECT_EQ(file_bytes(folder.path() / "model.safetensors"), safetensors_bytes(header, data));
  const SafetensorsFile file(folder.path() / "model.safetensors");
  EXPECT_EQ(file.tensors().size(), 3u);
}

TEST_F(ModelWriterTest, ShardsFillInOrderAndALargeTensorStandsAlone) {
  // Bytes 8, 4 | 40 | 4, 8 | 8 with a maximum of 12.
  const std::vector<PlannedTensor> plan{{"f", DType::f32, {2}},  {"e", DType::f32, {1}},
                                        {"d", DType::f32, {10}}, {"c", DType::f32, {}},
                                        {"b", DType::f32, {2}},  {"a", DType::f32, {2}}};
  ModelWriter writer(folder.path(), plan, 12);
  for (const char* name : {"a", "d", "b", "f", "c", "e"}) {
    const auto planned =
        std::find_if(plan.begin(), plan.end(), [&](const auto& p) { return p.name == name; });
    writer.write(name, patterned(planned->dtype, planned->shape));
  }
  writer.finish();
  EXPECT_EQ(names(),
            (std::vector<std::string>{"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                                      "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                                      "model.safetensors.index.json"}));
  EXPECT_EQ(file_bytes(folder.path() / "model.safetensors.index.json"), R"({
  "metadata": {
    "total_size": 72
  },
  "weight_map": {
    "a": "model-00004-of-00004.safetensors",
    "b": "model-00003-of-00004.safetensors",
    "c": "model-00003-of-00004.safetensors",
    "d": "model-00002-of-00004.safetensors",
    "e": "model-00001-of-00004.safetensors",
    "f": "model-00001-of-00004.safetensors"
  }
}
)");
  const SafetensorsFile third(folder.path() / "model-00003-of-00004.safetensors");
  EXPECT_EQ(bytes_of(third.load("b")), bytes_of(patterned(DType::f32, {2})));
  EXPECT_EQ(third.load("c").dim(), 0);
}

TEST_F(ModelWriterTest, OrderOfWritingDoesNotChangeTheBytes) {
  const std::vector<PlannedTensor> plan{
      {"a", DType::f32, {3}}, {"b", DType::f32, {3}}, {"c", DType::f32, {3}}};
  std::vector<std::string> bytes;
  for (const std::vector<std::string>& order : {std::vector<std::string>{"a", "b", "c"}, {"c", "a", "b"}}) {
    ModelWriter writer(folder.path(), plan, 24);
    for (const std::string& name : order) writer.write(name, tensor::full({3}, name[0], at::kFloat));
    writer.finish();
    bytes.push_back(file_bytes(folder.path() / "model-00001-of-00002.safetensors") +
                    file_bytes(folder.path() / "model-00002-of-00002.safetensors"));
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

TEST_F(ModelWriterTest, AnotherWriterGoesOn) {
  const std::vector<PlannedTensor> plan{
      {"a", DType::f32, {3}}, {"b", DType::f32, {3}}, {"c", DType::f32, {3}}};
  const auto value = [](const char* name) { return tensor::full({3}, name[0], at::kFloat); };
  const auto all_bytes = [&] {
    return file_bytes(folder.path() / "model-00001-of-00002.safetensors") +
           file_bytes(folder.path() / "model-00002-of-00002.safetensors");
  };
  {
    ModelWriter writer(folder.path(), plan, 24);
    EXPECT_EQ(fs::file_size(folder.path() / "model-00002-of-00002.safetensors") % 8, 4u);  // its full length
    for (const char* name : {"a", "b", "c"}) writer.write(name, value(name));
    writer.finish();
  }
  const std::string expected = all_bytes();
  for (const char* file : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})
    fs::remove(folder.path() / file);
  {
    ModelWriter dies(folder.path(), plan, 24);
    dies.write("b", value("b"));
    dies.write("c", value("a"));  // will be written again
    dies.sync();
  }
  ModelWriter writer(folder.path(), plan, 24);
  EXPECT_TRUE(writer.read("b").to_tensor().equal(value("b")));
  writer.keep("b");
  expect_bug(error_of([&] { writer.keep("b"); }), "written twice");
  writer.write("a", value("a"));
  writer.write("c", value("c"));
  writer.finish();
  EXPECT_EQ(all_bytes(), expected);
}

TEST_F(ModelWriterTest, SeveralThreads) {
  std::vector<PlannedTensor> plan;
  for (int i = 0; i < 64; ++i) plan.push_back({str("t", i), DType::i32, {i}});
  ModelWriter writer(folder.path(), plan, 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 63 - t; i >= 0; i -= 4) writer.write(str("t", i), tensor::full({i}, i, at::kInt));
    });
  }
  for (std::thread& thread : threads) thread.join();
  writer.finish();
  int64_t found = 0;
  for (const std::string& name : names()) {
    if (!name.ends_with(".safetensors")) continue;
    const SafetensorsFile file(folder.path() / name);
    for (const auto& [tensor_name, stored] : file.tensors()) {
      const int i = std::stoi(tensor_name.substr(1));
      EXPECT_TRUE(stored.to_tensor().equal(tensor::full({i}, i, at::kInt))) << tensor_name;
      ++found;
    }
  }
  EXPECT_EQ(found, 64);
}

TEST_F(ModelWriterTest, NonContiguousTensors) {
  const at::Tensor matrix = tensor::arange(6, at::kFloat).reshape({2, 3});
  ModelWriter writer(folder.path(), {{"t", DType::f32, {3, 2}}}, 1000);
  writer.write("t", matrix.t());
  writer.finish();
  EXPECT_TRUE(SafetensorsFile(folder.path() / "model.safetensors").load("t").equal(matrix.t()));
}

TEST_F(ModelWriterTest, DeviationsFromThePlanAreBugs) {
  const std::vector<PlannedTensor> plan{{"a", DType::f32, {2}}, {"b", DType::f32, {2}}};
  ModelWriter writer(folder.path(), plan, 1000);
  writer.write("a", patterned(DType::f32, {2}));
  expect_bug(error_of([&] { writer.write("a", patterned(DType::f32, {2})); }), "written twice");
  expect_bug(error_of([&] { writer.write("c", patterned(DType::f32, {2})); }), "not planned");
  expect_bug(error_of([&] { writer.write("b", patterned(DType::i32, {2})); }), "dtype");
  expect_bug(error_of([&] { writer.write("b", patterned(DType::f32, {1, 2})); }), "shape");
  expect_bug(error_of([&] { writer.write("b", std::span<const std::byte>()); }), "bytes");
  expect_bug(error_of([&] { writer.finish(); }), "\"b\"");
  writer.write("b", patterned(DType::f32, {2}));
  EXPECT_NO_THROW(writer.finish());

  expect_bug(error_of([&] { ModelWriter(folder.path(), {plan[0], plan[0]}, 1000); }), "planned twice");
  expect_bug(error_of([&] { ModelWriter(folder.path(), {{"n", DType::f32, {-1}}}, 1000); }), "shape");
  EXPECT_EQ(error_of([&] { ModelWriter(folder.path(), {}, 1000); }).kind(), ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace gramian
