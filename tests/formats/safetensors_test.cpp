#include "formats/safetensors.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
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
using testing_support::write_bytes;

constexpr DType kAllTypes[] = {DType::f64,     DType::f32,     DType::f16,     DType::bf16,
                               DType::i64,     DType::i32,     DType::i16,     DType::i8,
                               DType::u64,     DType::u32,     DType::u16,     DType::u8,
                               DType::boolean, DType::f8_e4m3, DType::f8_e5m2, DType::f8_e8m0};

class SafetensorsTest : public testing::Test {
 protected:
  // The message that refusing a file of these bytes gives; empty when it is accepted.
  Error refusal(const std::string& bytes) {
    write_bytes(path, bytes);
    return error_of([&] { SafetensorsFile{path}; });
  }
  // The same for a header over `data_bytes` zeros.
  Error header_refusal(const std::string& header, size_t data_bytes) {
    return refusal(safetensors_bytes(header, std::string(data_bytes, '\0')));
  }

  TemporaryFolder folder;
  fs::path path = folder.path() / "weights.safetensors";
};

#define EXPECT_REFUSED(error, text)                                                                  \
  do {                                                                                               \
    const Error refused = (error);                                                                   \
    EXPECT_EQ(refused.kind(), ErrorKind::corrupt_data) << refused.what();                            \
    EXPECT_NE(std::string(refused.what()).find(text), std::string::npos) << refused.what();          \
    EXPECT_NE(std::string(refused.what()).find(path.string()), std::string::npos) << refused.what(); \
  } while (false)

TEST_F(SafetensorsTest, RoundTripOfEveryType) {
  std::map<std::string, at::Tensor> tensors;
  for (const DType dtype : kAllTypes) {
    const std::string name(dtype_name(dtype));
    tensors[name + ".matrix"] = patterned(dtype, {3, 5});
    tensors[name + ".scalar"] = patterned(dtype, {});
    tensors[name + ".empty"] = patterned(dtype, {4, 0, 2});
  }
  save_safetensors(path, tensors);
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor loaded = file.load(name);
    EXPECT_EQ(loaded.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(loaded.sizes(), tensor.sizes()) << name;
    EXPECT_EQ(bytes_of(loaded), bytes_of(tensor)) << name;
    EXPECT_EQ(file.tensor(name).bytes.size(), tensor.nbytes()) << name;
  }
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
}

TEST_F(SafetensorsTest, SavedBytesDependOnTheTensorsAlone) {
  const std::map<std::string, at::Tensor> tensors{{"b", patterned(DType::u8, {3})},
                                                  {"a", patterned(DType::f32, {2, 2})}};
  save_safetensors(path, tensors);
  const std::string first = file_bytes(path);
  save_safetensors(path, tensors);
  EXPECT_EQ(file_bytes(path), first);
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(first, safetensors_bytes(padded, bytes_of(tensors.at("a")) + bytes_of(tensors.at("b"))));
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) files += entry.exists();
  EXPECT_EQ(files, 1u) << "a temporary file was left behind";
}

TEST_F(SafetensorsTest, NonContiguousTensorsAreStoredInTheirOrder) {
  const at::Tensor matrix = tensor::arange(12, at::kFloat).reshape({3, 4});
  save_safetensors(path, {{"t", matrix.t()}});
  EXPECT_TRUE(SafetensorsFile(path).load("t").equal(matrix.t()));
}

TEST_F(SafetensorsTest, AlignedTensorsAreViewsAndOthersCopies) {
  const std::string data{0, 0, '\x80', '\x3f', 0, 0, 0, '\x40'};
  for (const size_t padding : {0u, 1u}) {
    std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    header.resize((header.size() + 7) / 8 * 8 + padding, ' ');
    write_bytes(path, safetensors_bytes(header, data));
    at::Tensor loaded;
    const void* stored = nullptr;
    {
      const SafetensorsFile file(path);
      stored = file.tensor("x").bytes.data();
      loaded = file.load("x");
    }
    EXPECT_EQ(loaded.const_data_ptr() == stored, padding == 0);
    // The mapping outlives the file object.
    EXPECT_EQ(loaded[0].item<float>(), 1.0F);
    EXPECT_EQ(loaded[1].item<float>(), 2.0F);
  }
}

TEST_F(SafetensorsTest, AcceptsWhatTheFormatAllows) {
  const auto count = [&](const std::string& header, const std::string& data) {
    write_bytes(path, safetensors_bytes(header, data));
    return SafetensorsFile(path).tensors().size();
  };
  // Empty tensors share an offset, also at the end; the header may be padded and its fields in any order.
  EXPECT_EQ(count(R"({"e2":{"shape":[0],"dtype":"F32","data_offsets":[4,4]},)"
                  R"("a":{"data_offsets":[0,4],"dtype":"I8","shape":[4]},)"
                  R"("e1":{"dtype":"F64","shape":[2,0],"data_offsets":[0,0]},)"
                  R"("e0":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}       )",
                  "abcd"),
            4u);
  EXPECT_EQ(count("{}", ""), 0u);
  EXPECT_EQ(count(R"({"__metadata__":null})", ""), 0u);
  // A field that this version does not know.
  EXPECT_EQ(count(R"({"a":{"dtype":"I8","shape":[],"data_offsets":[0,1],"more":{"x":[1,{"y":null}]}}})", "a"),
            1u);
  // A header whose length begins like a pickle (0x80 0x02).
  std::string header = R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})";
  header.resize(0x280, ' ');
  EXPECT_EQ(count(header, "a"), 1u);
}

TEST_F(SafetensorsTest, AbsentTensorNamesFileAndTensor) {
  save_safetensors(path, {{"a", patterned(DType::f32, {1})}});
  const SafetensorsFile file(path);
  EXPECT_TRUE(file.contains("a"));
  EXPECT_FALSE(file.contains("b"));
  const Error error = error_of([&] { file.load("b\n"); });
  EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
  EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("\"b\\x0a\""), std::string::npos) << error.what();
}

TEST_F(SafetensorsTest, NamesWhatAWrongFileIs) {
  EXPECT_REFUSED(refusal(""), "empty file");
  EXPECT_REFUSED(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:00ff\nsize 123456\n"),
                 "git-LFS text pointer (71 bytes) for a file of 123456 bytes");
  EXPECT_REFUSED(refusal("\n <!DOCTYPE html><html></html>"), "HTML");
  EXPECT_REFUSED(refusal("<HTML><body>404</body></HTML>"), "HTML");
  EXPECT_REFUSED(refusal("{\"error\": \"not found\"}"), "JSON text");
  EXPECT_REFUSED(refusal(std::string("PK\x03\x04\x14\0\0\0\0\0", 10)), "zip archive");
  EXPECT_REFUSED(refusal(std::string("\x80\x02}q\0X\x01\0\0\0a", 11)), "pickle");
  EXPECT_REFUSED(refusal(std::string("GGUF\x03\0\0\0\0\0\0\0", 12)), "GGUF");
  EXPECT_REFUSED(refusal("abc"), "the file has 3");
}

TEST_F(SafetensorsTest, HeaderLengthIsCheckedBeforeUse) {
  const auto with_length = [](uint64_t length, const std::string& rest) {
    std::string bytes(8, '\0');
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
    return bytes + rest;
  };
  const auto start = std::chrono::steady_clock::now();
  EXPECT_REFUSED(refusal(with_length(uint64_t{1} << 62, "{}")),
                 "4611686018427387904 bytes after the first 8, the file has 10");
  EXPECT_REFUSED(refusal(with_length(~uint64_t{0}, "{}")), "18446744073709551615");
  EXPECT_REFUSED(refusal(with_length(3, "{}")), "declares 3 bytes");
  EXPECT_REFUSED(refusal(with_length(0, "")), "begins with '{'");
  EXPECT_REFUSED(refusal(with_length(2, "[]")), "begins with '{'");
  EXPECT_REFUSED(refusal(with_length(1, "{")), "JSON line 1, column 1: bad JSON");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST_F(SafetensorsTest, HeaderAboveTheLimit) {
  // A sparse file, so that the declared length fits it.
  write_bytes(path, std::string("\x01\xe1\xf5\x05\0\0\0\0{", 9));
  fs::resize_file(path, 200'000'000);
  EXPECT_REFUSED(error_of([&] { SafetensorsFile{path}; }), "100000001 bytes, the limit is 100000000");
}

TEST_F(SafetensorsTest, TruncatedAndExtended) {
  save_safetensors(path, {{"a", patterned(DType::f32, {8})}, {"b", patterned(DType::i8, {3})}});
  const std::string whole = file_bytes(path);
  EXPECT_REFUSED(refusal(whole.substr(0, whole.size() - 4)), "truncated");
  EXPECT_REFUSED(refusal(whole.substr(0, whole.size() - 4)),
                 str("a file of ", whole.size(), " bytes, the file has ", whole.size() - 4));
  EXPECT_REFUSED(refusal(whole + std::string(16, 'x')), "extra bytes");
}

TEST_F(SafetensorsTest, RefusesBadOffsets) {
  const auto with = [&](const std::string& offsets, size_t bytes) {
    return header_refusal(R"({"w":{"dtype":"U8","shape":[8],"data_offsets":)" + offsets + "}}", bytes);
  };
  EXPECT_REFUSED(with("[8,0]", 8), "ends before it begins");
  EXPECT_REFUSED(with("[0,9]", 9), "need 8 bytes, data_offsets give 9");
  EXPECT_REFUSED(with("[0,8]", 7), "truncated");
  EXPECT_REFUSED(with("[1,9]", 9), "hole");
  EXPECT_REFUSED(with("[9223372036854775799,9223372036854775807]", 8), "hole");
  for (const char* offsets :
       {"[-8,0]", "[-0,8]", "[0,9223372036854775808]", "[18446744073709551608,18446744073709551616]",
        "[18446744073709551615,7]", "[0.0,8]", "[0,8e0]", "[0,\"8\"]", "[0,null]", "[0,[8]]", "{}", "8"}) {
    EXPECT_REFUSED(with(offsets, 8), "integers from 0 to 2^63-1 as data_offsets of tensor \"w\"");
  }
  EXPECT_REFUSED(with("[]", 8), "two data_offsets");
  EXPECT_REFUSED(with("[0]", 8), "two data_offsets");
  EXPECT_REFUSED(with("[0,8,8]", 8), "two data_offsets");
}

TEST_F(SafetensorsTest, RefusesOverlapAndHole) {
  const auto pair = [&](const std::string& a, const std::string& b, size_t bytes) {
    return header_refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                              R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                          bytes);
  };
  EXPECT_REFUSED(pair("[0,4]", "[2,6]", 6), "overlaps");
  EXPECT_REFUSED(pair("[0,4]", "[0,4]", 4), "overlaps");
  EXPECT_REFUSED(pair("[0,4]", "[5,9]", 9), "hole");
  EXPECT_REFUSED(pair("[5,9]", "[1,5]", 9), "hole");
  // An empty tensor within another one, or past the end.
  EXPECT_REFUSED(header_refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                R"("e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                                4),
                 "overlaps");
  EXPECT_REFUSED(header_refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                R"("e":{"dtype":"U8","shape":[0],"data_offsets":[6,6]}})",
                                4),
                 "hole");
}

TEST_F(SafetensorsTest, RefusesBadShapes) {
  const auto with = [&](const std::string& shape, const std::string& dtype = "U8") {
    return header_refusal(
        R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[0,8]}})", 8);
  };
  EXPECT_REFUSED(with("[9]"), "need 9 bytes");
  EXPECT_REFUSED(with("[4294967296,4294967296]"), "overflows");
  EXPECT_REFUSED(with("[2305843009213693953]", "F64"), "overflows");
  EXPECT_REFUSED(with("[0,4611686018427387904,4611686018427387904]"), "overflows");
  EXPECT_REFUSED(with("[4611686018427387904,4,0]"), "overflows");
  std::string ones = "[8";
  for (int i = 0; i < 63; ++i) ones += ",1";
  EXPECT_REFUSED(with(ones + ",1]"), "64 dimensions");
  write_bytes(path, safetensors_bytes(R"({"w":{"dtype":"U8","shape":)" + ones + R"(],"data_offsets":[0,8]}})",
                                      "abcdefgh"));
  EXPECT_EQ(SafetensorsFile(path).load("w").dim(), 64);
  for (const char* shape : {"[-8]", "[8.0]", "[8e0]", "[\"8\"]", "[null]", "[[8]]", "[true]", "{}", "8",
                            "null", "[9223372036854775808]", "[18446744073709551624]"}) {
    EXPECT_REFUSED(with(shape), "integers from 0 to 2^63-1 as shape of tensor \"w\"");
  }
}

TEST_F(SafetensorsTest, RefusesBadFields) {
  EXPECT_REFUSED(header_refusal(R"({"w":{"dtype":"F6","shape":[8],"data_offsets":[0,8]}})", 8),
                 "unknown dtype \"F6\" of tensor \"w\"");
  EXPECT_REFUSED(header_refusal(R"({"w":{"dtype":8,"shape":[8],"data_offsets":[0,8]}})", 8),
                 "string as dtype");
  EXPECT_REFUSED(header_refusal(R"({"w":{"dtype":["U8"],"shape":[8],"data_offsets":[0,8]}})", 8),
                 "string as dtype");
  EXPECT_REFUSED(header_refusal(R"({"w":{"shape":[8],"data_offsets":[0,8]}})", 8), "no dtype");
  EXPECT_REFUSED(header_refusal(R"({"w":{"dtype":"U8","data_offsets":[0,8]}})", 8), "no shape");
  EXPECT_REFUSED(header_refusal(R"({"w":{"dtype":"U8","shape":[8]}})", 8), "no data_offsets");
  std::string many = R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":[0)";
  for (int i = 0; i < 64; ++i) many += ",0";
  EXPECT_REFUSED(header_refusal(many + "]}}", 8), "too many unknown fields of tensor \"w\"");
  // Fields of one tensor do not serve the next.
  EXPECT_REFUSED(header_refusal(R"({"v":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"w":{}})", 8),
                 "\"w\" has no dtype");
  EXPECT_REFUSED(header_refusal(R"({"w":[]})", 0), "object for \"w\"");
  EXPECT_REFUSED(header_refusal(R"({"w":1})", 0), "object for \"w\"");
  EXPECT_REFUSED(header_refusal(R"({"__metadata__":{"a":1}})", 0), "only strings in __metadata__");
  EXPECT_REFUSED(header_refusal(R"({"__metadata__":{"a":{}}})", 0), "only strings in __metadata__");
  EXPECT_REFUSED(header_refusal(R"({"__metadata__":"a"})", 0), "object for \"__metadata__\"");
  EXPECT_REFUSED(header_refusal(R"({"w\u0000":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8),
                 "NUL in the tensor name \"w\\x00\"");
}

TEST_F(SafetensorsTest, RefusesBadJson) {
  const std::string w = R"("w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  EXPECT_REFUSED(header_refusal("{" + w + "," + w + "}", 8), "duplicate key \"w\"");
  EXPECT_REFUSED(header_refusal(R"({"w":{"dtype":"U8","shape":[8],"shape":[8],"data_offsets":[0,8]}})", 8),
                 "duplicate key \"shape\"");
  EXPECT_REFUSED(header_refusal(R"({"__metadata__":{"a":"1","\u0061":"2"}})", 0), "duplicate key \"a\"");
  EXPECT_REFUSED(header_refusal("{" + w, 8), "bad JSON");
  EXPECT_REFUSED(header_refusal("{" + w + "}}", 8), "bad JSON");
  EXPECT_REFUSED(header_refusal("{" + w + std::string("}\0{", 3), 8), "NUL byte");
  EXPECT_REFUSED(header_refusal("{\"\xff\":1}", 8), "bad JSON");
  EXPECT_REFUSED(header_refusal(R"({"w":1e999})", 8), "bad JSON");
  const std::string deep =
      R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":)" + std::string(5'000'000, '[');
  EXPECT_REFUSED(header_refusal(deep, 8), "nested deeper");
  EXPECT_REFUSED(header_refusal("{\"w\":" + std::string(1'000'000, '['), 8), "object for \"w\"");
}

TEST_F(SafetensorsTest, BooleanBytesAreChecked) {
  write_bytes(path, safetensors_bytes(R"({"b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})",
                                      std::string("\0\1\2", 3)));
  const SafetensorsFile file(path);
  EXPECT_REFUSED(error_of([&] { file.load("b"); }), "neither 0 nor 1");
}

// Reads a file made from damaged bytes; it may be refused, but what is accepted must lie inside the file.
void expect_sound(const fs::path& path) {
  try {
    const SafetensorsFile file(path);
    for (const auto& [name, stored] : file.tensors()) {
      const std::span<const std::byte> whole = stored.file->bytes();
      ASSERT_GE(stored.bytes.data(), whole.data());
      ASSERT_LE(stored.bytes.data() + stored.bytes.size(), whole.data() + whole.size());
      const at::Tensor tensor = stored.to_tensor();
      ASSERT_EQ(tensor.nbytes(), stored.bytes.size());
      ASSERT_EQ(bytes_of(tensor).size(), stored.bytes.size());
    }
  } catch (const Error& error) {
    ASSERT_EQ(error.kind(), ErrorKind::corrupt_data) << error.what();
    ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

TEST_F(SafetensorsTest, EveryFlippedByteAndEveryLengthIsSafe) {
  save_safetensors(path, {{"a.b", patterned(DType::f32, {2, 3})},
                          {"c", patterned(DType::boolean, {5})},
                          {"e", patterned(DType::i64, {0, 7})},
                          {"s", patterned(DType::bf16, {})}});
  const std::string whole = file_bytes(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int mask : {0x01, 0x02, 0x10, 0x20, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ mask);
      write_bytes(path, damaged);
      expect_sound(path);
      if (HasFatalFailure()) FAIL() << "byte " << i << " mask " << mask;
    }
  }
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_REFUSED(refusal(whole.substr(0, length)), "");
  }
}

}  // namespace
}  // namespace gramian
