#include "golden_sets/ggml/ggml_golden.h"
#include "support/golden.h"

int main(int argc, char** argv) {
  return gramian::golden::run(argc, argv, "ggml", [](const std::filesystem::path& root) {
    gramian::golden::collect_blocks(root);
    gramian::golden::collect_files(root);
    gramian::golden::collect_importance(root);
  });
}
