#include "golden_sets/modelopt/modelopt_golden.h"
#include "support/golden.h"

int main(int argc, char** argv) {
  return gramian::golden::run(argc, argv, "modelopt", [](const std::filesystem::path& root) {
    gramian::golden::collect_statistics(root);
    gramian::golden::collect_encoders(root);
    gramian::golden::collect_nvfp4(root);
    gramian::golden::collect_updates(root);
    gramian::golden::collect_kl(root);
    gramian::golden::collect_delta_rule(root);
    gramian::golden::collect_linear_attention(root);
  });
}
