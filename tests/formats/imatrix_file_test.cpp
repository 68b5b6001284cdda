#include "formats/imatrix_file.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "formats/gguf/gguf.h"
#include "support/files.h"

namespace gramian {
namespace {

namespace fs = std::filesystem;
using testing_support::error_of;
using testing_support::file_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

const char* const kPlain = "blk.0.attn_q.weight";
const char* const kExperts = "blk.0.ffn_up_exps.weight";

ImportanceMatrix small_matrix() {
  ImportanceMatrix matrix;
  matrix.weights[kPlain] = {{8, 4, 0, 2}, {32}};
  matrix.weights[kExperts] = {{10, 20, 30, 0, 0, 0}, {10, 0}};
  matrix.datasets = {"a.txt"};
  matrix.chunks = 2;
  matrix.chunk_size = 16;
  return matrix;
}

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
std::string entry(const std::string& name, int32_t calls, const std::vector<float>& values) {
  std::string bytes =
      raw(static_cast<int32_t>(name.size())) + name + raw(calls) + raw(static_cast<int32_t>(values.size()));
  for (const float value : values) bytes += raw(value);
  return bytes;
}

class ImatrixFileTest : public testing::Test {
 protected:
  void expect_refused(const std::string& bytes, const std::string& message) {
    write_bytes(path, bytes);
    const Error error = error_of([&] { (void)read_importance(path); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << error.what();
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
  // A GGUF file with one key replaced and these tensors.
  void write_gguf(const std::vector<std::pair<std::string, std::vector<float>>>& tensors,
                  const std::string& type = "imatrix") {
    gguf::Metadata metadata;
    metadata.set("general.type", type);
    metadata.set("imatrix.chunk_count", uint32_t{1});
    metadata.set("imatrix.chunk_size", uint32_t{16});
    std::vector<gguf::TensorType> types;
    for (const auto& [name, values] : tensors)
      types.push_back({name, find_codec("F32"), {static_cast<int64_t>(values.size())}});
    gguf::write(path, metadata, types, [&](size_t i, const gguf::Append& append) {
      append(std::as_bytes(std::span(tensors[i].second)));
    });
  }

  TemporaryFolder folder;
  fs::path path = folder.path() / "imatrix";
};

TEST_F(ImatrixFileTest, BothFormsReadBack) {
  const ImportanceMatrix matrix = small_matrix();
  write_importance(path, matrix);
  const ImportanceMatrix found = read_importance(path);
  EXPECT_EQ(found.datasets, matrix.datasets);
  EXPECT_EQ(found.chunks, 2u);
  EXPECT_EQ(found.chunk_size, 16u);
  ASSERT_EQ(found.weights.size(), 2u);
  EXPECT_EQ(found.weights.at(kPlain).sums, matrix.weights.at(kPlain).sums);
  EXPECT_EQ(found.weights.at(kExperts).counts, matrix.weights.at(kExperts).counts);
  EXPECT_EQ(found.weights.at(kExperts).experts(), 2);
  EXPECT_EQ(found.weights.at(kExperts).in_features(), 3);
  EXPECT_EQ(found.weights.at(kPlain).importance(), (std::vector<float>{0.25f, 0.125f, 0, 0.0625f}));
  EXPECT_EQ(found.weights.at(kExperts).importance(0), (std::vector<float>{1, 2, 3}));
  // No token went to the second expert.
  EXPECT_EQ(found.weights.at(kExperts).importance(1), (std::vector<float>{1, 1, 1}));

  write_legacy_importance(path, matrix);
  ImportanceMatrix legacy = read_importance(path, 16);
  EXPECT_EQ(legacy.datasets, matrix.datasets);
  EXPECT_EQ(legacy.chunks, 2u);
  EXPECT_EQ(legacy.weights.at(kPlain).importance(), found.weights.at(kPlain).importance());
  ImportanceSums& experts = legacy.weights.at(kExperts);
  split_experts(experts, 2, 3, "blk.0");
  for (const int64_t e : {0, 1}) EXPECT_EQ(experts.importance(e), found.weights.at(kExperts).importance(e));
}

TEST_F(ImatrixFileTest, LegacyBytesAreThoseOfTheForm) {
  ImportanceMatrix matrix;
  matrix.weights["w"] = {{8, 4}, {32}};
  matrix.datasets = {"a.txt"};
  matrix.chunks = 3;
  matrix.chunk_size = 20;  // 32 tokens are two calls
  write_legacy_importance(path, matrix);
  EXPECT_EQ(file_bytes(path),
            raw(int32_t{1}) + entry("w", 2, {0.5f, 0.25f}) + raw(int32_t{3}) + raw(int32_t{5}) + "a.txt");
}

TEST_F(ImatrixFileTest, MergingAddsSumsAndCounts) {
  ImportanceMatrix matrix = small_matrix();
  ImportanceMatrix other = small_matrix();
  other.weights["output.weight"] = {{1}, {2}};
  other.datasets = {"b.txt"};
  matrix.add(other, "other");
  EXPECT_EQ(matrix.weights.at(kPlain).sums, (std::vector<float>{16, 8, 0, 4}));
  EXPECT_EQ(matrix.weights.at(kPlain).counts, (std::vector<float>{64}));
  EXPECT_EQ(matrix.weights.at(kExperts).counts, (std::vector<float>{20, 0}));
  EXPECT_EQ(matrix.weights.at("output.weight").counts, (std::vector<float>{2}));
  EXPECT_EQ(matrix.chunks, 4u);
  EXPECT_EQ(matrix.datasets, (std::vector<std::string>{"a.txt", "b.txt"}));

  other.weights[kPlain] = {{1, 2}, {3}};
  const Error error = error_of([&] { matrix.add(other, "other.gguf"); });
  EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
  EXPECT_NE(std::string(error.what()).find("other.gguf"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("has 1 x 2 sums, expected 1 x 4"), std::string::npos)
      << error.what();
}

TEST_F(ImatrixFileTest, ExpertsThatDoNotDivideAreRefused) {
  for (const auto& [experts, in] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 4}, {3, 3}, {4, 2}, {0, 6}, {6, 0}}) {
    ImportanceSums sums{{1, 2, 3, 4, 5, 6}, {7}};
    EXPECT_EQ(error_of([&, e = experts, i = in] { split_experts(sums, e, i, "w"); }).kind(),
              ErrorKind::invalid_argument);
  }
  ImportanceSums already{{1, 2, 3, 4}, {7, 8}};
  split_experts(already, 2, 2, "w");
  EXPECT_EQ(already.counts, (std::vector<float>{7, 8}));
  EXPECT_EQ(error_of([&] { split_experts(already, 1, 4, "w"); }).kind(), ErrorKind::invalid_argument);
}

TEST_F(ImatrixFileTest, ValuesThatAreNoImportanceAreRefusedWithTheirPlace) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {-1.0f, inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    write_gguf({{"w.in_sum2", {1, 2, bad}}, {"w.counts", {1}}});
    expect_refused(file_bytes(path), "sum 2 of \"w\" is ");
    write_gguf({{"w.in_sum2", {1, 2}}, {"w.counts", {bad}}});
    expect_refused(file_bytes(path), "count 0 of \"w\" is ");
    expect_refused(raw(int32_t{1}) + entry("w", 1, {0, bad}), "value 1 of \"w\" is ");
    ImportanceMatrix matrix = small_matrix();
    matrix.weights.at(kPlain).sums[3] = bad;
    for (const auto write : {write_importance, write_legacy_importance}) {
      const Error error = error_of([&] { write(path, matrix); });
      EXPECT_NE(std::string(error.what()).find("sum 3 of \"blk.0.attn_q.weight\""), std::string::npos)
          << error.what();
    }
  }
  // Finite as it stands, infinite as a sum of tokens.
  expect_refused(raw(int32_t{1}) + entry("w", 1, {3e38f}), "value 0 of \"w\" is inf");
}

TEST_F(ImatrixFileTest, DamagedGgufFormsAreRefused) {
  write_gguf({{"w.in_sum2", {1, 2}}, {"w.counts", {1}}}, "model");
  expect_refused(file_bytes(path),
                 "expected an importance matrix (general.type \"imatrix\"), found \"model\"");
  write_gguf({{"w.in_sum2", {1, 2}}});
  expect_refused(file_bytes(path), "no tensor \"w.counts\"");
  write_gguf({{"w.counts", {1}}});
  expect_refused(file_bytes(path), "tensor \"w.counts\" is neither sums nor the counts of some");
  write_gguf({{"w.in_sum2", {1, 2}}, {"w.counts", {1, 2}}});
  expect_refused(file_bytes(path), "has sums of 1 experts and counts of 2");
  write_gguf({{"w.in_sum2", {0, 2}}, {"w.counts", {0}}});
  expect_refused(file_bytes(path), "sum 1 of \"w\" is 2 (at byte ");
  write_gguf({{"w.in_sum2", {1, 2}}, {"w.counts", {1}}});
  const std::string whole = file_bytes(path);
  expect_refused(whole + '\0',
                 str("ends at byte ", whole.size(), " by its header, the file has ", whole.size() + 1));
  gguf::Metadata metadata;
  metadata.set("general.type", std::string("imatrix"));
  gguf::write(path, metadata, {}, [](size_t, const gguf::Append&) {});
  expect_refused(file_bytes(path), "expected the key \"imatrix.chunk_count\"");
}

TEST_F(ImatrixFileTest, DamagedLegacyFormsAreRefused) {
  const std::string good =
      raw(int32_t{1}) + entry("w", 1, {1, 2}) + raw(int32_t{3}) + raw(int32_t{5}) + "a.txt";
  const size_t bare = 4 + 4 + 1 + 4 + 4 + 8;
  for (size_t size = 0; size < good.size(); ++size) {
    write_bytes(path, good.substr(0, size));
    if (size == bare || size == bare + 4) {  // what follows is optional
      EXPECT_EQ(read_importance(path).weights.size(), 1u);
    } else {
      EXPECT_EQ(error_of([&] { (void)read_importance(path); }).kind(), ErrorKind::corrupt_data) << size;
    }
  }
  expect_refused(good + "x", str("1 bytes too many at its end (at byte ", good.size(), ")"));
  const std::string huge = raw(std::numeric_limits<int32_t>::max()), negative = raw(int32_t{-1});
  for (const std::string& count : {huge, negative, raw(int32_t{0})}) {
    expect_refused(count + good.substr(4), "expected a number of weights, found ");
    expect_refused(raw(int32_t{1}) + count + good.substr(8), "expected a number of bytes of a name, found ");
    expect_refused(raw(int32_t{1}) + raw(int32_t{1}) + "w" + raw(int32_t{1}) + count + good.substr(17),
                   "expected a number of values, found ");
  }
  expect_refused(raw(int32_t{1}) + entry("w", 0, {1, 2}), "\"w\" has 0 calls");
  expect_refused(raw(int32_t{2}) + entry("w", 1, {1}) + entry("w", 1, {1}), "\"w\" is there twice");
  expect_refused(raw(int32_t{1}) + entry("w", 1, {1}) + raw(int32_t{-2}), "has -2 chunks");
  // Zeros behind the last weight are no chunks.
  expect_refused(raw(int32_t{1}) + entry("w", 1, {1}) + std::string(8, '\0'), "has 0 chunks");
}

}  // namespace
}  // namespace gramian
