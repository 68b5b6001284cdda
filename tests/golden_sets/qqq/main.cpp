#include "golden_sets/qqq/qqq_golden.h"
#include "support/golden.h"

int main(int argc, char** argv) {
  return gramian::golden::run(argc, argv, "qqq", [](const std::filesystem::path& root) {
    gramian::golden::collect_format(root);
    gramian::golden::collect_solver(root);
  });
}
