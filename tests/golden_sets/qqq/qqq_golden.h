// The cases of the golden set "qqq", by subject.
#pragma once

#include <filesystem>

namespace gramian::golden {

// Packing, unpacking, activation quantization and the forward of every layer and configuration.
void collect_format(const std::filesystem::path& root);
// Gram matrices, factors, the scalar quantizer and the solver under the peer's rules.
void collect_solver(const std::filesystem::path& root);

}  // namespace gramian::golden
