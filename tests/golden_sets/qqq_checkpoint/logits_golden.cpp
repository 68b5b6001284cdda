// Whole models against the peer's logits: int8 activations amplify last-bit differences, so the bounds are wide
// for quantized models (the README of the set derives them) and tight for the plain source.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "golden_sets/qqq_checkpoint/qqq_checkpoint_golden.h"
#include "runtime/resident_model.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace {

constexpr double kQuantizedF16 = 0.06, kQuantizedBf16 = 0.08, kQuantizedKl = 0.003;  // the set's README
constexpr double kSource = 1e-3;

at::Tensor logits_of(const std::filesystem::path& folder, const std::string& dtype, const at::Tensor& ids) {
  const tensor::InferenceScope inference;
  ResidentModel model(folder, {.dtype = dtype}, std::make_shared<ThreadPool>(2));
  std::vector<TokenRow> rows;
  const at::Tensor wide = ids.to(at::kLong).contiguous();
  for (int64_t r = 0; r < wide.size(0); ++r) {
    const int64_t* row = wide.const_data_ptr<int64_t>() + r * wide.size(1);
    rows.emplace_back(row, row + wide.size(1));
  }
  return model.logits(model.states(rows)).view({wide.size(0), wide.size(1), -1});
}

double relative(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble);
  return found.to(at::kDouble).sub(reference).norm().item<double>() / reference.norm().item<double>();
}

// Mean over positions of KL(expected || found).
double mean_kl(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor p = expected.to(at::kDouble).log_softmax(-1), q = found.to(at::kDouble).log_softmax(-1);
  return p.exp().mul(p.sub(q)).sum(-1).mean().item<double>();
}

void check(const std::filesystem::path& folder, const std::string& dtype, const at::Tensor& ids,
           const at::Tensor& expected, double bound) {
  const at::Tensor found = logits_of(folder, dtype, ids);
  ASSERT_EQ(found.sizes(), expected.sizes());
  const double difference = relative(found, expected), kl = mean_kl(found, expected);
  testing::Test::RecordProperty("relative_l2", std::to_string(difference));
  testing::Test::RecordProperty("mean_kl", std::to_string(kl));
  std::printf("  relative L2 %.2e (at most %.0e), mean KL %.2e\n", difference, bound, kl);
  EXPECT_LE(difference, bound);
  EXPECT_LE(kl, kQuantizedKl);
}

}  // namespace

void collect_logits(const std::filesystem::path& root) {
  for (const std::filesystem::path& set : folders_with(root, "common.safetensors")) {
    const SafetensorsFile common(set / "common.safetensors");
    const at::Tensor ids = common.load("ids");
    const auto add_case = [&](const std::filesystem::path& folder, const std::string& dtype,
                              const at::Tensor& expected, double bound) {
      add("qqq_logits", folder.filename().string() + "." + dtype,
          [=] { check(folder, dtype, ids, expected, bound); });
    };
    if (std::filesystem::is_directory(set / "source") && common.contains("source_logits_f32")) {
      add_case(set / "source", "float32", common.load("source_logits_f32"), kSource);
    }
    for (const auto& [folder, file] : quantized_folders(set)) {
      const SafetensorsFile outputs(file);
      if (outputs.contains("logits_f16")) {
        add_case(folder, "float16", outputs.load("logits_f16"), kQuantizedF16);
        add_case(folder, "float32", outputs.load("logits_f16"), kQuantizedF16);
      }
      if (outputs.contains("logits_bf16"))
        add_case(folder, "bfloat16", outputs.load("logits_bf16"), kQuantizedBf16);
    }
  }
}

}  // namespace gramian::golden
