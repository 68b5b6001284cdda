// Files of llama.cpp's tools: what was read and is written again is the same bytes.
#include <cmath>
#include <string>

#include "formats/gguf/gguf.h"
#include "formats/imatrix_file.h"
#include "golden_sets/ggml/ggml_golden.h"
#include "support/files.h"
#include "support/golden.h"

namespace gramian::golden {
namespace {

using Path = std::filesystem::path;
using testing_support::file_bytes;

std::string head_of(const gguf::File& file) {
  const std::vector<gguf::TensorType> types(file.tensors().begin(), file.tensors().end());
  return gguf::lay_out(file.metadata(), types).head;
}

// The header of a file whose data is not kept: zeros stand for it.
void check_header(const Path& path) {
  const testing_support::TemporaryFolder folder;
  const std::string head = file_bytes(path);
  const Path whole = folder.path() / "model.gguf";
  testing_support::write_bytes(whole, head);
  std::filesystem::resize_file(whole, head.size() + (int64_t{1} << 28));
  const gguf::File file(whole);
  EXPECT_FALSE(file.tensors().empty());
  EXPECT_NE(file.metadata().string("general.architecture"), nullptr);
  EXPECT_TRUE(head_of(file) == head) << "the header written anew differs";
}

void check_model(const Path& path) {
  const gguf::File file(path);
  const std::string head = head_of(file);
  EXPECT_TRUE(file_bytes(path).starts_with(head)) << "the header written anew differs";
  for (const gguf::Tensor& tensor : file.tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.rows() * tensor.columns()));
    tensor.decode(values.data());
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << tensor.name;
  }
}

void check_importance(const Path& path) {
  const testing_support::TemporaryFolder folder;
  const ImportanceMatrix matrix = read_importance(path);
  EXPECT_FALSE(matrix.weights.empty());
  write_importance(folder.path() / "again", matrix);
  EXPECT_TRUE(file_bytes(folder.path() / "again") == file_bytes(path)) << "the file written anew differs";
}

// Both forms of one measurement.
void check_forms(const Path& folder) {
  const ImportanceMatrix expected = read_importance(folder / "imatrix.gguf"),
                         found = read_importance(folder / "imatrix.dat");
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  EXPECT_EQ(found.datasets, expected.datasets);
  for (const auto& [name, sums] : expected.weights) {
    ASSERT_TRUE(found.weights.contains(name)) << name;
    const std::vector<float> ours = found.weights.at(name).importance(), theirs = sums.importance();
    ASSERT_EQ(ours.size(), theirs.size()) << name;
    for (size_t j = 0; j < ours.size(); ++j)
      ASSERT_NEAR(ours[j], theirs[j], 1e-6f * theirs[j]) << name << " column " << j;
  }
}

}  // namespace

void collect_files(const Path& root) {
  for (const Path& folder : folders_with(root, "imatrix.gguf")) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const Path path = entry.path();
      const std::string name = path.filename().string();
      if (name == "imatrix.gguf") {
        add("ggml_files", name, [path] { check_importance(path); });
        add("ggml_files", "imatrix.dat", [folder] { check_forms(folder); });
      } else if (name.ends_with(".header.bin")) {
        add("ggml_files", name, [path] { check_header(path); });
      } else if (name.ends_with(".gguf")) {
        add("ggml_files", name, [path] { check_model(path); });
      }
    }
  }
}

}  // namespace gramian::golden
