// The importance matrix that llama-imatrix measured, measured anew: sums within 2e-5 relative (fp32 forwards that add in other
// orders), counts exact.
#include <algorithm>
#include <string>

#include "formats/safetensors.h"
#include "golden_sets/ggml/ggml_golden.h"
#include "pipeline/importance.h"
#include "support/files.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace {

using Path = std::filesystem::path;

// The text's chunks as ready rows, the first token of each replaced by that of the whole text.
void write_chunks(const Path& folder, const ImportanceMatrix& expected, const Path& out) {
  const at::Tensor ids = SafetensorsFile(folder / "tokens.safetensors").load("ids").flatten().to(at::kLong);
  const auto chunks = static_cast<int64_t>(expected.chunks), size = static_cast<int64_t>(expected.chunk_size);
  ASSERT_GE(ids.numel(), chunks * size);
  const at::Tensor rows = ids.narrow(0, 0, chunks * size).reshape({chunks, size}).clone();
  rows.select(1, 0).fill_(ids[0].item<int64_t>());
  save_safetensors(out, {{"input_ids", rows}});
}

void check(const Path& folder) {
  const ImportanceMatrix expected = read_importance(folder / "imatrix.gguf");
  const testing_support::TemporaryFolder scratch;
  const Path rows = scratch.path() / "rows.safetensors";
  write_chunks(folder, expected, rows);
  ThreadPool pool(2);
  Log log(LogLevel::quiet);
  const MeasuredImportance measured = measure_importance(
      {.source = folder, .calibration = rows, .rows = {.samples_default = 0}, .dtype = "float32"}, pool, log);
  EXPECT_EQ(measured.matrix.chunks, expected.chunks);
  EXPECT_EQ(measured.matrix.chunk_size, expected.chunk_size);
  EXPECT_TRUE(measured.without_data.empty());
  for (const auto& [name, sums] : expected.weights) {
    if (name == "output.weight") continue;  // asked for there; the head is not measured here
    ASSERT_TRUE(measured.matrix.weights.contains(name)) << name;
    const ImportanceSums& found = measured.matrix.weights.at(name);
    EXPECT_EQ(found.counts, sums.counts) << name;
    ASSERT_EQ(found.sums.size(), sums.sums.size()) << name;
    for (size_t j = 0; j < sums.sums.size(); ++j)
      ASSERT_NEAR(found.sums[j], sums.sums[j], 2e-5f * sums.sums[j]) << name << " column " << j;
  }
}

}  // namespace

void collect_importance(const Path& root) {
  for (const Path& folder : folders_with(root, "imatrix.gguf")) {
    if (std::filesystem::exists(folder / "model.safetensors"))
      add("ggml_importance", folder.filename().string(), [folder] { check(folder); });
  }
}

}  // namespace gramian::golden
