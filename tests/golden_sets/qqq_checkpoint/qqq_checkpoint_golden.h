// The cases of the golden set "qqq_checkpoint", by subject.
#pragma once

#include <filesystem>

namespace gramian::golden {

// Outputs of single quantized linears, and the packed tensors of every module, exact.
void collect_modules(const std::filesystem::path& root);

}  // namespace gramian::golden
