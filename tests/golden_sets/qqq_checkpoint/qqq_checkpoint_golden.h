// The cases of the golden set "qqq_checkpoint", by subject.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace gramian::golden {

// Every quantized folder <stem> at or below `root` with its <stem>_outputs.safetensors, sorted.
inline std::vector<std::pair<std::filesystem::path, std::filesystem::path>> quantized_folders(
    const std::filesystem::path& root) {
  const std::string suffix = "_outputs.safetensors";
  std::vector<std::pair<std::filesystem::path, std::filesystem::path>> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string text = entry.path().string();
    if (!text.ends_with(suffix)) continue;
    const std::filesystem::path folder = text.substr(0, text.size() - suffix.size());
    if (std::filesystem::is_directory(folder)) found.emplace_back(folder, entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Outputs of single quantized linears, and the packed tensors of every module, exact.
void collect_modules(const std::filesystem::path& root);
// Logits of whole models in every type.
void collect_logits(const std::filesystem::path& root);
// The source quantized again under the peer's rules: codes, losses, damping.
void collect_requantize(const std::filesystem::path& root);

}  // namespace gramian::golden
