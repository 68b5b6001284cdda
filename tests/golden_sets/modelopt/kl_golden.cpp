// The scores of evaluation against float64: KL of each position, means of chunks, and the paired difference with its interval.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "eval/evaluate.h"
#include "formats/safetensors.h"
#include "golden_sets/modelopt/modelopt_golden.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace {

using Path = std::filesystem::path;

std::vector<double> values_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.to(at::kDouble).contiguous();
  return {plain.const_data_ptr<double>(), plain.const_data_ptr<double>() + plain.numel()};
}

// f32 logits give the KL of a position within a few of their own roundings.
void check_positions(const Path& path, const std::string& model) {
  const SafetensorsFile file(path);
  const auto first = std::stoll(file.metadata().at("first_scored")),
             last = std::stoll(file.metadata().at("last_scored"));
  const at::Tensor reference = file.load("logits_ref").log_softmax(-1),
                   found = file.load("logits_" + model).log_softmax(-1);
  const std::vector<double> expected = values_of(file.load("kl_" + model + ".f64")),
                            chunks = values_of(file.load("chunk_" + model + ".f64"));
  const int64_t length = reference.size(1);
  for (int64_t row = 0; row < reference.size(0); ++row) {
    RowScore all, scored;
    const at::Tensor targets = tensor::zeros({length}, at::kLong);
    add_scores(found.select(0, row).clone(), reference.select(0, row), targets, all);
    ASSERT_EQ(all.kl_at.size(), static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i)
      EXPECT_NEAR(all.kl_at[static_cast<size_t>(i)], expected[static_cast<size_t>(row * length + i)], 2e-6);
    const auto part = [&](const at::Tensor& rows) { return rows.select(0, row).slice(0, first, last + 1); };
    add_scores(part(found).clone(), part(reference), targets.slice(0, first, last + 1), scored);
    EXPECT_NEAR(scored.kl / static_cast<double>(scored.positions), chunks[static_cast<size_t>(row)], 2e-6);
  }
}

void check_difference(const Path& path) {
  constexpr double kExact = 1e-9;
  const SafetensorsFile file(path);
  const std::vector<double> a = values_of(file.load("chunk_a.f64")), b = values_of(file.load("chunk_b.f64")),
                            summary = values_of(file.load("summary.f64")), weights(a.size(), 1);
  std::vector<double> differences;
  for (size_t i = 0; i < a.size(); ++i) differences.push_back(a[i] - b[i]);
  const Interval difference = mean_with_ci95(differences, weights);
  EXPECT_NEAR(mean_with_ci95(a, weights).mean, summary[0], kExact);
  EXPECT_NEAR(mean_with_ci95(b, weights).mean, summary[1], kExact);
  EXPECT_NEAR(std::fabs(difference.mean), std::fabs(summary[2]), kExact);
  EXPECT_NEAR((difference.high - difference.low) / 2, summary[4], kExact);
}

}  // namespace

void collect_kl(const Path& root) {
  for (const Path& folder : folders_with(root, "kl_eval.safetensors")) {
    const Path path = folder / "kl_eval.safetensors";
    for (const std::string model : {"a", "b"})
      add("modelopt_kl", model, [path, model] { check_positions(path, model); });
    add("modelopt_kl", "difference", [path] { check_difference(path); });
  }
}

}  // namespace gramian::golden
