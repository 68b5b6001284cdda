#include "golden_sets/qqq_checkpoint/qqq_checkpoint_golden.h"
#include "support/golden.h"

int main(int argc, char** argv) {
  return gramian::golden::run(argc, argv, "qqq_checkpoint", [](const std::filesystem::path& root) {
    gramian::golden::collect_modules(root);
    gramian::golden::collect_logits(root);
    gramian::golden::collect_requantize(root);
  });
}
