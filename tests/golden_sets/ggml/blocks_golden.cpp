// Exact: encoded bytes and decoded floats are those of ggml, at every CPU level.
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "golden_sets/ggml/ggml_golden.h"
#include "kernels/codecs/codec.h"
#include "support/golden.h"

namespace gramian::golden {
namespace {

using Path = std::filesystem::path;

struct BlocksCase {
  std::string tensor;  // CASE/TYPE or CASE/TYPE.w
  std::string name;    // CASE
  const Codec* codec;
  bool importance;
  bool invalid;  // the result holds an infinite scale
};

std::vector<float> floats(const StoredTensor& stored) {
  std::vector<float> values(stored.bytes.size() / sizeof(float));
  std::memcpy(values.data(), stored.bytes.data(), stored.bytes.size());
  return values;
}

// How many blocks differ, and the first of them.
testing::AssertionResult same_blocks(const Codec& codec, const std::vector<uint8_t>& found,
                                     std::span<const std::byte> expected) {
  if (found.size() != expected.size()) return testing::AssertionFailure() << "another number of bytes";
  const auto size = static_cast<size_t>(codec.bytes);
  size_t differ = 0, first = 0;
  for (size_t at = found.size(); at > 0; at -= size) {
    if (std::memcmp(found.data() + at - size, expected.data() + at - size, size) == 0) continue;
    ++differ;
    first = at / size - 1;
  }
  if (differ == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << differ << " of " << found.size() / size
                                     << " blocks differ, the first is " << first;
}

void check(const Path& path, const BlocksCase& test) {
  const SafetensorsFile file(path);
  const Codec& codec = *test.codec;
  const std::vector<float> x = floats(file.tensor(test.name + "/x")),
                           w = floats(file.tensor(test.name + "/w"));
  const auto columns = static_cast<int64_t>(w.size()), rows = static_cast<int64_t>(x.size()) / columns;
  const float* importance = test.importance ? w.data() : nullptr;
  const StoredTensor& expected = file.tensor(test.tensor);
  std::vector<uint8_t> blocks(static_cast<size_t>(rows * codec.row_bytes(columns)));
  for (int level = 0; level <= static_cast<int>(detected_cpu_level()); ++level) {
    for (int64_t row = 0; row < rows; ++row) {
      codec.encode(static_cast<CpuLevel>(level), x.data() + row * columns, columns, importance,
                   blocks.data() + row * codec.row_bytes(columns));
    }
    EXPECT_TRUE(same_blocks(codec, blocks, expected.bytes)) << name(static_cast<CpuLevel>(level));
  }
  const EncodeRowsOptions options = {.importance = importance};
  if (test.invalid) {
    EXPECT_THROW(encode_rows(codec, x.data(), rows, columns, options, blocks.data(), "x"), Error);
  } else {
    encode_rows(codec, x.data(), rows, columns, options, blocks.data(), "x");
    EXPECT_TRUE(same_blocks(codec, blocks, expected.bytes));
  }
  if (!file.contains(test.tensor + ".dq")) return;
  const std::vector<float> decoded = floats(file.tensor(test.tensor + ".dq"));
  std::vector<float> found(decoded.size());
  const auto* stored = reinterpret_cast<const uint8_t*>(expected.bytes.data());
  decode_rows(codec, stored, static_cast<int64_t>(decoded.size()) / columns, columns, nullptr, found.data());
  for (size_t i = 0; i < decoded.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(decoded[i])) << "value " << i;
}

}  // namespace

void collect_blocks(const Path& root) {
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (!entry.path().filename().string().starts_with("blocks")) continue;
    const SafetensorsFile file(entry.path());
    const nlohmann::ordered_json cases = parse_json(file.metadata().at("cases"), entry.path().string());
    for (const auto& [tensor, stored] : file.tensors()) {
      BlocksCase test;
      test.tensor = tensor;
      test.name = tensor.substr(0, tensor.find('/'));
      std::string type = tensor.substr(test.name.size() + 1);
      if (type == "x" || type == "w" || type.ends_with(".dq")) continue;
      const std::string full = type;
      test.importance = type.ends_with(".w");
      if (test.importance) type.resize(type.size() - 2);
      test.codec = find_codec(type);
      const auto& invalid = cases.at(test.name).at("invalid");
      test.invalid = std::find(invalid.begin(), invalid.end(), full) != invalid.end();
      add("ggml_blocks", tensor, [path = entry.path(), test] {
        ASSERT_NE(test.codec, nullptr);
        check(path, test);
      });
    }
  }
}

}  // namespace gramian::golden
