// The anchored encoder of IQ2_XXS against one in float64: bytes are equal where the choice of a scale code does not hang on rounding.
#include <ATen/core/Tensor.h>

#include <cstring>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "golden_sets/modelopt/modelopt_golden.h"
#include "kernels/codecs/codec.h"
#include "support/golden.h"

namespace gramian::golden {
namespace {

constexpr int64_t kBlock = 256, kSubBlocks = 8, kHead = 2, kSubBlockBytes = 8;
constexpr float kSureMargin = 1e-4f;

void check(const std::filesystem::path& path, const std::string& kind) {
  const SafetensorsFile file(path);
  const Codec& codec = *find_codec("IQ2_XXS");
  const at::Tensor w = file.load("w"), margin = file.load(kind + ".subblock_margin");
  const at::Tensor importance =
      file.load("sumsq.f64").div(file.load("count").to(at::kDouble)).to(at::kFloat).contiguous();
  const int64_t rows = w.size(0), columns = w.size(1);
  std::vector<uint8_t> found(static_cast<size_t>(rows * codec.row_bytes(columns)));
  const EncodeRowsOptions options = {
      .importance = kind == "plain" ? nullptr : importance.const_data_ptr<float>(), .anchored = true};
  encode_rows(codec, w.const_data_ptr<float>(), rows, columns, options, found.data(), "w");
  const auto* expected = reinterpret_cast<const uint8_t*>(file.tensor(kind + ".payload.f64").bytes.data());
  ASSERT_EQ(found.size(), file.tensor(kind + ".payload.f64").bytes.size());
  int64_t sure = 0;
  for (int64_t block = 0; block < rows * columns / kBlock; ++block) {
    const int64_t at = block * codec.bytes;
    EXPECT_EQ(std::memcmp(found.data() + at, expected + at, kHead), 0) << "d of block " << block;
    for (int64_t b = 0; b < kSubBlocks; ++b) {
      if (margin.const_data_ptr<float>()[block * kSubBlocks + b] <= kSureMargin) continue;
      ++sure;
      const int64_t from = at + kHead + b * kSubBlockBytes;
      EXPECT_EQ(std::memcmp(found.data() + from, expected + from, kSubBlockBytes), 0)
          << "block " << block << " sub-block " << b;
    }
  }
  EXPECT_GT(sure, 0);
}

}  // namespace

void collect_encoders(const std::filesystem::path& root) {
  for (const auto& folder : folders_with(root, "imatrix.safetensors")) {
    const std::filesystem::path path = folder / "imatrix.safetensors";
    const SafetensorsFile file(path);
    for (const std::string kind : {"plain", "imatrix"}) {
      if (file.contains(kind + ".payload.f64")) add("encoders", kind, [path, kind] { check(path, kind); });
    }
  }
}

}  // namespace gramian::golden
