// The cases of the golden set "ggml", by subject.
#pragma once

#include <filesystem>

namespace gramian::golden {

// Every codec against blocks that ggml encoded and decoded.
void collect_blocks(const std::filesystem::path& root);
// GGUF files and importance matrices that llama.cpp's tools wrote.
void collect_files(const std::filesystem::path& root);
// Importance matrices measured anew, where the model is kept.
void collect_importance(const std::filesystem::path& root);

}  // namespace gramian::golden
