#include "pipeline/source_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "support/files.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

class SourceScanTest : public testing::Test {
 protected:
  void scan(const std::map<std::string, at::Tensor>& tensors, int threads = 2,
            const QuantizePlan& plan = {}) {
    write_bytes(folder_.path() / "config.json", "{}");
    save_safetensors(folder_.path() / "model.safetensors", tensors);
    ThreadPool pool(threads);
    Log log(LogLevel::quiet);
    scan_source(Checkpoint(folder_.path()), plan, pool, log);
  }
  TemporaryFolder folder_;
};

TEST_F(SourceScanTest, FiniteValuesPass) {
  const at::Tensor extremes =
      tensor::cat({tensor::full({3}, -std::numeric_limits<float>::max(), at::kFloat),
                   tensor::full({3}, 1e-45, at::kFloat), tensor::zeros({1}, at::kFloat)},
                  0);
  EXPECT_NO_THROW(scan({{"f32", extremes},
                        {"f16", tensor::full({5}, 65504, at::kHalf)},
                        {"bf16", tensor::full({5}, 3e38, at::kBFloat16)},
                        {"f64", tensor::full({5}, 1e300, at::kDouble)},
                        {"scalar", tensor::full({}, 1, at::kFloat)},
                        {"empty", tensor::zeros({0, 4}, at::kFloat)},
                        // All bits set, as in a NaN, but integers.
                        {"i32", tensor::full({5}, -1, at::kInt)},
                        {"u8", tensor::full({5}, 255, at::kByte)}}));
}

TEST_F(SourceScanTest, NamesTensorCountAndPlaceOfEveryType) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const double bad : {kNan, kInf, -kInf}) {
      at::Tensor tensor = tensor::zeros({3, 4, 5}, type);
      tensor[1][2].narrow(0, 3, 2).fill_(bad);
      const Error error = error_of([&] { scan({{"good", tensor::zeros({7}, type)}, {"bad", tensor}}); });
      EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
      const std::string text = error.what();
      EXPECT_NE(text.find("bad: 2 value(s), the first at [1, 2, 3]"), std::string::npos) << text;
      EXPECT_EQ(text.find("good"), std::string::npos) << text;
      EXPECT_NE(text.find("in 1 tensor(s)"), std::string::npos) << text;
    }
  }
}

TEST_F(SourceScanTest, ListsEveryTensor) {
  const at::Tensor nan = tensor::full({2}, kNan, at::kFloat), inf = tensor::full({}, kInf, at::kHalf);
  const std::string text =
      error_of([&] { scan({{"a", nan}, {"b", tensor::zeros({2}, at::kFloat)}, {"c", inf}}); }).what();
  EXPECT_NE(text.find("a: 2 value(s), the first at [0]"), std::string::npos) << text;
  EXPECT_NE(text.find("c: 1 value(s), the first at []"), std::string::npos) << text;
}

TEST_F(SourceScanTest, BiasesMustFitTheHalfTheyAreStoredIn) {
  const auto linear = [](const std::string& name) { return Linear{name, 128, 4, true, nullptr}; };
  QuantizePlan plan;
  plan.layers = {{{linear("packed"), true, ""}, {linear("skipped"), false, "does not fit"}}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::Tensor bias = tensor::full({4}, 65504, type);
    if (type == at::kBFloat16) bias.fill_(65280);  // the largest below that bf16 has
    EXPECT_NO_THROW(scan({{"packed.bias", bias}}, 2, plan));
    bias.narrow(0, 1, 2).fill_(-65536);
    // Only what is stored as f16 has to fit.
    EXPECT_NO_THROW(scan({{"packed.weight", bias}, {"skipped.bias", bias}, {"norm.bias", bias}}, 2, plan));
    const std::string text = error_of([&] {
                               scan({{"packed.bias", bias}, {"nan", tensor::full({1}, kNan, type)}}, 2, plan);
                             }).what();
    EXPECT_NE(text.find("in 2 tensor(s)"), std::string::npos) << text;
    EXPECT_NE(text.find("packed.bias: 2 value(s) beyond 65504"), std::string::npos) << text;
    EXPECT_NE(text.find("the first at [1]"), std::string::npos) << text;
    EXPECT_NE(text.find("nan: 1 value(s), the first at [0]"), std::string::npos) << text;
  }
}

TEST_F(SourceScanTest, FindsValuesAcrossChunks) {
  constexpr int64_t kColumns = (int64_t{1} << 21) + 1;
  at::Tensor large = tensor::zeros({3, kColumns}, at::kHalf);
  large[2][kColumns - 1].fill_(kInf);
  large[2][7].fill_(kNan);
  for (const int threads : {1, 3}) {
    const std::string text = error_of([&] { scan({{"large", large}}, threads); }).what();
    EXPECT_NE(text.find("large: 2 value(s), the first at [2, 7]"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace gramian
