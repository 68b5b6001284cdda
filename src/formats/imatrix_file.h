// Importance matrices as llama.cpp keeps them: for each weight the sums of squared input columns and the token rows that were summed,
// for each expert of a stack of experts on its own. Two forms are read, and written:
//
//   GGUF     general.type "imatrix"; imatrix.datasets (strings), imatrix.chunk_count, imatrix.chunk_size (u32); for each weight, by
//            name, NAME.in_sum2 f32 [experts, in] and NAME.counts f32 [experts, 1]
//   legacy   i32 weights; for each: i32 length, name, i32 calls, i32 values, f32 values; then, both optional, i32 chunks and i32 length,
//            dataset. A value is (sum / count) * calls: the sums themselves are lost, and an expert without data holds ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace gramian {

struct ImportanceSums {
  std::vector<float> sums;    // [experts, in]
  std::vector<float> counts;  // [experts] token rows

  int64_t experts() const noexcept { return static_cast<int64_t>(counts.size()); }
  int64_t in_features() const noexcept {
    return counts.empty() ? 0 : static_cast<int64_t>(sums.size() / counts.size());
  }
  // sum / count of one expert, [in]; ones where it had no token.
  std::vector<float> importance(int64_t expert = 0) const;
};

struct ImportanceMatrix {
  std::map<std::string, ImportanceSums> weights;  // by GGUF's name of the weight: "blk.0.attn_q.weight"
  std::vector<std::string> datasets;
  uint32_t chunks = 0;
  uint32_t chunk_size = 512;  // tokens a chunk

  // Adds sums, counts, chunks and datasets. Throws invalid_argument for a weight of another size or number of experts; `where` names
  // the other file.
  void add(const ImportanceMatrix& other, const std::string& where);
};

// Either form. Everything is checked: corrupt_data for a file that contradicts its form or goes on behind its end, and for a sum or
// count that is negative or not finite, or a sum of no tokens, with its place. Of the legacy form, count is calls * `legacy_chunk_size`, the tokens of a chunk, which that form does not
// tell; experts are not told apart either: `sums` is one row of in * experts values until split_experts().
ImportanceMatrix read_importance(const std::filesystem::path& path, uint32_t legacy_chunk_size = 512);
// Divides a weight of one row into rows of `in_features`. Throws invalid_argument, naming `where` and the weight, when they do not divide
// or are divided otherwise already.
void split_experts(ImportanceSums& sums, int64_t experts, int64_t in_features, const std::string& where);

void write_importance(const std::filesystem::path& path, const ImportanceMatrix& matrix);
void write_legacy_importance(const std::filesystem::path& path, const ImportanceMatrix& matrix);

}  // namespace gramian
