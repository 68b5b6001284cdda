#include "formats/gguf/gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "support/files.h"

namespace gramian::gguf {
namespace {

namespace fs = std::filesystem;
using testing_support::error_of;
using testing_support::file_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
std::string text(const std::string& value) { return raw(uint64_t{value.size()}) + value; }
std::string key(const std::string& name, uint32_t type, const std::string& value) {
  return text(name) + raw(type) + value;
}
std::string info(const std::string& name, const std::vector<uint64_t>& sizes, uint32_t type,
                 uint64_t offset) {
  std::string bytes = text(name) + raw(static_cast<uint32_t>(sizes.size()));
  for (const uint64_t size : sizes) bytes += raw(size);
  return bytes + raw(type) + raw(offset);
}
// A file by hand: descriptions, padding to 32, data.
std::string by_hand(const std::vector<std::string>& keys, const std::vector<std::string>& infos,
                    const std::string& data, size_t alignment = 32) {
  std::string bytes = "GGUF" + raw(uint32_t{3}) + raw(uint64_t{infos.size()}) + raw(uint64_t{keys.size()});
  for (const std::string& part : keys) bytes += part;
  for (const std::string& part : infos) bytes += part;
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
  return bytes + data;
}

class GgufTest : public testing::Test {
 protected:
  Error refusal(const std::string& bytes) {
    write_bytes(path, bytes);
    return error_of([&] { File{path}; });
  }
  void expect_refused(const std::string& bytes, const std::string& message,
                      ErrorKind kind = ErrorKind::corrupt_data) {
    const Error error = refusal(bytes);
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }

  TemporaryFolder folder;
  fs::path path = folder.path() / "model.gguf";
};

// Every type of value there is.
Metadata every_type() {
  Metadata metadata;
  metadata.set("u8", uint8_t{200});
  metadata.set("i8", int8_t{-100});
  metadata.set("u16", uint16_t{60000});
  metadata.set("i16", int16_t{-30000});
  metadata.set("u32", uint32_t{4000000000u});
  metadata.set("i32", int32_t{-2000000000});
  metadata.set("f32", 0.1f);
  metadata.set("bool", true);
  metadata.set("string", std::string("with a \0 byte", 13));
  metadata.set("u64", std::numeric_limits<uint64_t>::max());
  metadata.set("i64", std::numeric_limits<int64_t>::min());
  metadata.set("f64", 0.1);
  metadata.set("a.u8", Array(std::vector<uint8_t>{1, 255}));
  metadata.set("a.i8", Array(std::vector<int8_t>{-1}));
  metadata.set("a.u16", Array(std::vector<uint16_t>{65535}));
  metadata.set("a.i16", Array(std::vector<int16_t>{-32768, 7}));
  metadata.set("a.u32", Array(std::vector<uint32_t>{1, 2, 3}));
  metadata.set("a.i32", Array(std::vector<int32_t>{-3}));
  metadata.set("a.f32", Array(std::vector<float>{-0.0f, 1e-40f}));
  metadata.set("a.bool", Array(std::vector<bool>{true, false}));
  metadata.set("a.string", Array(std::vector<std::string>{"", "a", "\xff"}));
  metadata.set("a.u64", Array(std::vector<uint64_t>{}));
  metadata.set("a.i64", Array(std::vector<int64_t>{-9}));
  metadata.set("a.f64", Array(std::vector<double>{2.5}));
  return metadata;
}

void write_patterned(const fs::path& path, const Metadata& metadata, const std::vector<TensorType>& tensors) {
  write(path, metadata, tensors, [&](size_t i, const Append& append) {
    std::vector<std::byte> bytes(tensors[i].bytes());
    for (size_t j = 0; j < bytes.size(); ++j) bytes[j] = static_cast<std::byte>(i * 64 + j);
    // In two pieces.
    append(std::span(bytes).first(bytes.size() / 3));
    append(std::span(bytes).subspan(bytes.size() / 3));
  });
}

std::vector<TensorType> three_tensors() {
  return {{"blk.0.attn_q.weight", find_codec("Q4_K"), {3, 256}},
          {"output_norm.weight", find_codec("F32"), {5}},
          {"blk.0.ffn_up_exps.weight", find_codec("Q8_0"), {2, 3, 64}}};
}

TEST_F(GgufTest, ReadsBackWhatWasWritten) {
  const Metadata metadata = every_type();
  const auto types = three_tensors();
  write_patterned(path, metadata, types);
  const File file(path);
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.metadata().entries(), metadata.entries());
  ASSERT_EQ(file.tensors().size(), types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    const Tensor& tensor = file.tensors()[i];
    EXPECT_EQ(tensor.name, types[i].name);
    EXPECT_EQ(tensor.codec, types[i].codec);
    EXPECT_EQ(tensor.shape, types[i].shape);
    ASSERT_EQ(tensor.data.size(), types[i].bytes());
    for (size_t j = 0; j < tensor.data.size(); ++j)
      ASSERT_EQ(tensor.data[j], static_cast<std::byte>(i * 64 + j)) << tensor.name << " byte " << j;
    EXPECT_EQ(&file.tensor(types[i].name), &tensor);
  }
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_EQ(error_of([&] { (void)file.tensor("absent"); }).kind(), ErrorKind::invalid_argument);
  EXPECT_EQ(fs::file_size(path) % kDefaultAlignment, 0u);
}

TEST_F(GgufTest, AlignmentIsTheFilesOwn) {
  for (const uint32_t alignment : {1u, 8u, 4096u}) {
    Metadata metadata;
    metadata.set("general.alignment", alignment);
    write_patterned(path, metadata, three_tensors());
    const File file(path);
    for (const Tensor& tensor : file.tensors()) {
      const auto at = static_cast<size_t>(tensor.data.data() - file.mapping()->bytes().data());
      EXPECT_EQ(at % alignment, 0u);
      EXPECT_EQ(tensor.data[1], static_cast<std::byte>(static_cast<uint8_t>(tensor.data[0]) + 1));
    }
  }
}

TEST_F(GgufTest, GettersConvertWhatFitsAndRefuseWhatDoesNot) {
  write_patterned(path, every_type(), {});
  const File file(path);
  const Metadata& metadata = file.metadata();
  EXPECT_EQ(metadata.integer("u8"), 200);
  EXPECT_EQ(metadata.integer("i32"), -2000000000);
  EXPECT_EQ(metadata.integer("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(metadata.integer("absent"), std::nullopt);
  EXPECT_EQ(metadata.number("f64"), 0.1);
  EXPECT_EQ(metadata.number("i8"), -100);
  EXPECT_EQ(metadata.boolean("bool"), true);
  EXPECT_EQ(metadata.string("string")->size(), 13u);
  EXPECT_EQ(metadata.string("absent"), nullptr);
  EXPECT_EQ(metadata.array<int32_t>("a.i32")->front(), -3);
  EXPECT_EQ(metadata.array<int32_t>("absent"), nullptr);
  const std::vector<std::pair<std::function<void()>, std::string>> wrong = {
      {[&] { (void)metadata.integer("u64"); }, "expected an integer below 2^63 under the key \"u64\""},
      {[&] { (void)metadata.integer("f32"); }, "found f32"},
      {[&] { (void)metadata.integer("bool"); }, "found bool"},
      {[&] { (void)metadata.number("string"); }, "expected a number"},
      {[&] { (void)metadata.boolean("u8"); }, "expected a bool"},
      {[&] { (void)metadata.string("a.string"); }, "found array of string"},
      {[&] { (void)metadata.array<float>("a.f64"); },
       "expected an array of f32 under the key \"a.f64\", found array of f64"},
      {[&] { (void)metadata.array<float>("f32"); }, "found f32"}};
  for (const auto& [call, message] : wrong) {
    const Error error = error_of(call);
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
}

TEST_F(GgufTest, EveryTruncationIsRefused) {
  write_patterned(path, every_type(), three_tensors());
  const std::string whole = file_bytes(path);
  const uint64_t last = File(path).tensors().back().bytes();
  // The padding behind the last tensor may be missing.
  const size_t needed = whole.size() - (32 - last % 32) % 32;
  write_bytes(path, whole.substr(0, needed));
  EXPECT_EQ(File(path).tensors().size(), 3u);
  for (size_t size = 0; size < needed; ++size) {
    const Error error = refusal(whole.substr(0, size));
    ASSERT_EQ(error.kind(), ErrorKind::corrupt_data) << size << ": " << error.what();
  }
}

TEST_F(GgufTest, OtherFilesAndVersionsAreRefused) {
  expect_refused("", "expected 4 bytes of the magic number, the file has 0 left");
  expect_refused("{\"a\": 1}" + std::string(40, ' '), "begins with GGUF");
  const std::string rest = raw(uint64_t{0}) + raw(uint64_t{0});
  expect_refused("GGUF" + raw(uint32_t{1}) + rest, "version 1, expected 2 or 3", ErrorKind::unsupported);
  expect_refused("GGUF" + raw(uint32_t{4}) + rest, "version 4", ErrorKind::unsupported);
  expect_refused("GGUF" + raw(uint32_t{0x03000000}) + rest, "big-endian", ErrorKind::unsupported);
  write_bytes(path, "GGUF" + raw(uint32_t{2}) + rest);
  EXPECT_EQ(File(path).version(), 2u);
}

TEST_F(GgufTest, CountsThatTheFileCannotHoldAreRefusedBeforeRoomIsMade) {
  const uint64_t huge = uint64_t{1} << 62;
  expect_refused("GGUF" + raw(uint32_t{3}) + raw(huge) + raw(uint64_t{0}), "tensors, the file has only");
  expect_refused("GGUF" + raw(uint32_t{3}) + raw(uint64_t{0}) + raw(huge), "keys, the file has only");
  expect_refused(by_hand({raw(huge) + "key"}, {}, ""), "a key, the file has only");
  expect_refused(by_hand({key("a", 8, raw(huge))}, {}, ""), "bytes of a string, the file has only");
  for (const uint32_t element : {0u, 5u, 7u, 8u, 12u})
    expect_refused(by_hand({key("a", 9, raw(element) + raw(huge))}, {}, ""),
                   "array elements, the file has only");
  expect_refused(by_hand({}, {raw(huge) + "name" + std::string(40, '\0')}, ""),
                 "a tensor's name, the file has only");
}

TEST_F(GgufTest, ImpossibleMetadataIsRefused) {
  const std::string one = key("a", 4, raw(uint32_t{1}));
  expect_refused(by_hand({one, one}, {}, ""), "the key \"a\" is there twice");
  expect_refused(by_hand({key("", 4, raw(uint32_t{1}))}, {}, ""), "key 0 is empty");
  expect_refused(by_hand({key("a", 13, raw(uint64_t{1}))}, {}, ""), "unknown value type 13");
  expect_refused(by_hand({key("a", 7, "\2")}, {}, ""), "expected 0 or 1 as a bool, found 2");
  expect_refused(by_hand({key("a", 9, raw(uint32_t{9}) + raw(uint64_t{0}))}, {}, ""), "an array of arrays");
  expect_refused(by_hand({key("a", 9, raw(uint32_t{99}) + raw(uint64_t{0}))}, {}, ""),
                 "unknown value type 99");
  for (const uint32_t alignment : {0u, 3u, 48u})
    expect_refused(by_hand({key("general.alignment", 4, raw(alignment))}, {}, ""), "is no power of two");
  expect_refused(by_hand({key("general.alignment", 10, raw(uint64_t{32}))}, {}, ""), "found u64");
}

TEST_F(GgufTest, ImpossibleTensorsAreRefused) {
  const std::string data(4096, '\0');
  const auto refused = [&](const std::vector<std::string>& infos, const std::string& message,
                           ErrorKind kind = ErrorKind::corrupt_data) {
    expect_refused(by_hand({}, infos, data), message, kind);
  };
  refused({info("", {1}, 0, 0)}, "expected a tensor name of 1 to 63 bytes");
  refused({info(std::string(64, 'x'), {1}, 0, 0)}, "expected a tensor name of 1 to 63 bytes");
  refused({info("a", {1, 1, 1, 1, 1}, 0, 0)}, "has 5 dimensions");
  refused({info("a", {8, 0}, 0, 0)}, "impossible size 0 in dimension 1");
  refused({info("a", {uint64_t{1} << 63}, 0, 0)}, "impossible size");
  refused({info("a", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0)}, "impossible size");
  refused({info("a", {uint64_t{1} << 20, uint64_t{1} << 20, uint64_t{1} << 20, 16}, 0, 0)},
          "impossible size");
  refused({info("a", {256}, 11, 0)}, "GGML type 11, which cannot be read", ErrorKind::unsupported);
  refused({info("a", {256}, 0xffffffffu, 0)}, "cannot be read", ErrorKind::unsupported);
  refused({info("a", {128, 2}, 12, 0)}, "has rows of 128 values, Q4_K needs a multiple of 256");
  refused({info("a", {8}, 0, 0), info("a", {8}, 0, 32)}, "tensor \"a\" is there twice");
  refused({info("a", {9}, 0, 0), info("b", {8}, 0, 32)}, "\"b\" lies at offset 32, expected 64");
  refused({info("a", {8}, 0, 0), info("b", {8}, 0, 64)}, "\"b\" lies at offset 64, expected 32");
  refused({info("a", {8}, 0, 0), info("b", {8}, 0, 0)}, "\"b\" lies at offset 0, expected 32");
  refused({info("a", {2000}, 0, 0)}, "\"a\"");
  refused({info("a", {8}, 0, 0), info("b", {1020}, 0, 32)}, "\"b\" takes bytes");
}

TEST_F(GgufTest, TheWriterRefusesWhatTheReaderWould) {
  const Codec* f32 = find_codec("F32");
  const auto refused = [&](const Metadata& metadata, const std::vector<TensorType>& tensors,
                           const std::string& message) {
    const Error error = error_of([&] { (void)lay_out(metadata, tensors); });
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  };
  Metadata metadata;
  refused(metadata, {{"", f32, {1}}}, "1 to 63 bytes");
  refused(metadata, {{std::string(64, 'x'), f32, {1}}}, "1 to 63 bytes");
  refused(metadata, {{"a", f32, {1, 1, 1, 1, 1}}}, "has 5 dimensions");
  refused(metadata, {{"a", f32, {0}}}, "impossible size 0");
  refused(metadata, {{"a", f32, {-1}}}, "impossible size -1");
  refused(metadata, {{"a", f32, {int64_t{1} << 40, int64_t{1} << 40}}}, "impossible size");
  refused(metadata, {{"a", f32, {1}}, {"a", f32, {1}}}, "is there twice");
  refused(metadata, {{"a", find_codec("IQ2_XXS"), {2, 128}}}, "IQ2_XXS needs a multiple of 256");
  metadata.set("general.alignment", uint32_t{24});
  refused(metadata, {}, "power of two");
  Metadata nameless;
  nameless.set("", true);
  refused(nameless, {}, "empty");
}

TEST_F(GgufTest, AFailedWriteLeavesTheOldFile) {
  write_bytes(path, "old");
  const std::vector<TensorType> types = {{"a", find_codec("F32"), {4}}};
  const std::vector<std::byte> bytes(20);
  for (const size_t count : {size_t{12}, size_t{20}}) {
    EXPECT_EQ(error_of([&] {
                write(path, {}, types,
                      [&](size_t, const Append& append) { append(std::span(bytes).first(count)); });
              }).kind(),
              ErrorKind::internal);
    EXPECT_EQ(file_bytes(path), "old");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
  }
}

TEST_F(GgufTest, TensorsDecode) {
  const std::vector<TensorType> types = {{"a", find_codec("BF16"), {2, 3}}};
  const uint16_t values[6] = {0x3f80, 0xbf80, 0, 0x4000, 0x7f80, 0x0001};
  write(path, {}, types, [&](size_t, const Append& append) { append(std::as_bytes(std::span(values))); });
  const File file(path);
  const Tensor& tensor = file.tensor("a");
  EXPECT_EQ(tensor.rows(), 2);
  EXPECT_EQ(tensor.columns(), 3);
  std::vector<float> decoded(6);
  tensor.decode(decoded.data());
  EXPECT_EQ(decoded[0], 1.0f);
  EXPECT_EQ(decoded[3], 2.0f);
  EXPECT_EQ(decoded[4], std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace gramian::gguf
