// Byte-pair encoding: vocabulary, merges by rank, and the model member of tokenizer.json.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/tokenizer/json_node.h"

namespace gramian::tokenizer {

// (left id, right id) -> (rank, merged id): open addressing with linear probing. Ids lie below 2^31 - 1.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = -1;  // -1: the pair has no merge
  };
  explicit MergeTable(size_t pairs);
  // A later merge of the same pair replaces the earlier one, as in the reference.
  void set(int32_t left, int32_t right, Merge merge) noexcept;
  Merge find(int32_t left, int32_t right) const noexcept {
    const uint64_t key = key_of(left, right);
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kEmpty) return {};
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) noexcept {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const noexcept { return (key * 0x9E3779B97F4A7C15u) >> shift_; }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;
};

// Transparent hashing, so that a std::string map is asked with a view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
};
using StringIds = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// Buffers of one encoding call; holds the results of pieces seen before.
class BpeScratch {
 public:
  struct Node {
    int32_t id = 0;
    int32_t previous = -1;
    int32_t next = -1;
    uint32_t rank = 0;  // of the merge of this symbol with the next one
    int32_t merged = -1;
  };

 private:
  friend class Bpe;
  struct Range {
    size_t begin = 0;
    size_t count = 0;
  };
  std::vector<int32_t> symbols_;
  std::vector<Node> nodes_;
  std::vector<uint64_t> queue_;
  // Keys view the pieces, which must outlive this object.
  std::unordered_map<std::string_view, Range> seen_;
  std::vector<int64_t> seen_ids_;
};

class Bpe {
 public:
  // `node` is the "model" member. With `byte_level` the first symbols are bytes, else characters (with byte
  // fallback if the file says so). Throws corrupt_data for merges of or to words that the vocabulary lacks,
  // and unsupported for model types and options that are not built.
  Bpe(const JsonNode& node, bool byte_level);

  // The vocabulary as written in the file.
  const StringIds& vocabulary() const noexcept { return vocabulary_; }
  // Appends the ids of `piece` (not empty). Throws invalid_argument for a symbol without a vocabulary entry
  // when the file names no unknown token. Thread-safe with one scratch per thread.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<int64_t>& ids) const;

 private:
  void read_options(const JsonNode& node);
  void read_vocabulary(const JsonNode& node);
  void read_merges(const JsonNode& node);
  void split_bytes(std::string_view piece, std::vector<int32_t>& symbols) const;
  void split_characters(std::string_view piece, std::vector<int32_t>& symbols) const;
  [[noreturn]] void no_entry(std::string_view symbol) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols, BpeScratch& scratch) const;

  std::string file_;
  bool byte_level_;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_ = -1;
  StringIds vocabulary_;
  StringIds pieces_;                   // whole pieces as they reach the model; only with ignore_merges
  std::array<int32_t, 256> byte_ids_;  // of the byte-level characters, or of the <0xHH> entries; -1: none
  std::optional<MergeTable> merges_;
};

}  // namespace gramian::tokenizer
