#include "formats/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/unicode.h"

namespace gramian::tokenizer {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
// Up to this many symbols a scan of all pairs per merge is faster than a queue.
constexpr size_t kShortPiece = 48;
// Longer pieces are rarely met again, and the store of seen pieces stays within some megabytes.
constexpr size_t kSeenBytesMax = 64;
constexpr size_t kSeenPiecesMax = size_t{1} << 16;

std::string byte_entry(int byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return str("<0x", kHex[byte >> 4], kHex[byte & 15], ">");
}

}  // namespace

MergeTable::MergeTable(size_t pairs) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(16, pairs + pairs / 2));
  slots_.resize(capacity);
  mask_ = capacity - 1;
  shift_ = 64 - std::countr_zero(capacity);
}

void MergeTable::set(int32_t left, int32_t right, Merge merge) noexcept {
  const uint64_t key = key_of(left, right);
  size_t slot = slot_of(key);
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, merge};
}

Bpe::Bpe(const JsonNode& node, bool byte_level) : file_(node.file()), byte_level_(byte_level) {
  node.require_object();
  const JsonNode type = node["type"];
  if (!type.has_value()) throw node.unsupported("a model without a type");
  if (type.string() != "BPE") throw type.unsupported(str("model type \"", type.string(), "\""));
  read_options(node);
  read_vocabulary(node["vocab"]);
  read_merges(node["merges"]);
  const JsonNode unknown = node["unk_token"];
  if (unknown.has_value()) {
    const auto found = vocabulary_.find(unknown.string());
    if (found == vocabulary_.end())
      throw unknown.corrupt(str("\"", unknown.string(), "\" is not in the vocabulary"));
    unknown_ = found->second;
  }
}

void Bpe::read_options(const JsonNode& node) {
  ignore_merges_ = node["ignore_merges"].boolean_or(false);
  byte_fallback_ = node["byte_fallback"].boolean_or(false);
  fuse_unknown_ = node["fuse_unk"].boolean_or(false);
  // Dropout only matters in training: it makes the result random.
  const JsonNode dropout = node["dropout"];
  if (dropout.has_value() && !(dropout.json().is_number() && dropout.json().get<double>() == 0.0)) {
    throw dropout.unsupported("dropout");
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonNode affix = node[name];
    if (affix.has_value() && !affix.string().empty()) throw affix.unsupported("an affix on subwords");
  }
}

void Bpe::read_vocabulary(const JsonNode& node) {
  node.require_object();
  vocabulary_.reserve(node.json().size());
  std::vector<int32_t> ids;
  ids.reserve(node.json().size());
  std::string bytes;
  byte_ids_.fill(-1);
  for (const auto& [word, value] : node.json().items()) {
    if (!value.is_number_integer())
      throw node[word].corrupt(str("expected an id, found ", value.type_name()));
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(kMaxId)) {
      throw node[word].corrupt(str("id ", value.dump(), " is not in 0 to ", kMaxId));
    }
    const auto id = value.get<int32_t>();
    vocabulary_.emplace(word, id);
    ids.push_back(id);
    const bool piece = !byte_level_ || byte_level_bytes(word, bytes);
    if (byte_level_ && piece && bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes[0])] = id;
    if (ignore_merges_ && piece) pieces_.emplace(byte_level_ ? bytes : word, id);
  }
  std::sort(ids.begin(), ids.end());
  const auto repeated = std::adjacent_find(ids.begin(), ids.end());
  if (repeated != ids.end()) throw node.corrupt(str("id ", *repeated, " is given to two words"));
  if (byte_level_ || !byte_fallback_) return;
  for (int byte = 0; byte < 256; ++byte) {
    const auto entry = vocabulary_.find(byte_entry(byte));
    if (entry != vocabulary_.end()) byte_ids_[static_cast<size_t>(byte)] = entry->second;
  }
}

void Bpe::read_merges(const JsonNode& node) {
  node.require_array();
  const Json& merges = node.json();
  if (merges.size() >= kNoRank) throw node.corrupt("too many merges");
  merges_.emplace(merges.size());
  std::string merged;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto corrupt = [&](const std::string& what) {
      return JsonNode(&merges[rank], node.file(), str(node.path(), "[", rank, "]")).corrupt(what);
    };
    std::string_view left, right;
    if (const Json& merge = merges[rank]; merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        throw corrupt(str("expected two words with one space between them, found \"", text, "\""));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else {
      throw corrupt("expected \"left right\" or [\"left\", \"right\"]");
    }
    const auto id_of = [&](std::string_view word) {
      const auto found = vocabulary_.find(word);
      if (found == vocabulary_.end()) throw corrupt(str("\"", word, "\" is not in the vocabulary"));
      return found->second;
    };
    const int32_t left_id = id_of(left), right_id = id_of(right);
    merged.assign(left).append(right);
    merges_->set(left_id, right_id, {static_cast<uint32_t>(rank), id_of(merged)});
  }
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch, std::vector<int64_t>& ids) const {
  const bool remember = piece.size() <= kSeenBytesMax;
  if (remember) {
    const auto seen = scratch.seen_.find(piece);
    if (seen != scratch.seen_.end()) {
      const auto begin = scratch.seen_ids_.begin() + static_cast<std::ptrdiff_t>(seen->second.begin);
      ids.insert(ids.end(), begin, begin + static_cast<std::ptrdiff_t>(seen->second.count));
      return;
    }
  }
  std::vector<int32_t>& symbols = scratch.symbols_;
  symbols.clear();
  const auto whole = ignore_merges_ ? pieces_.find(piece) : pieces_.end();
  if (whole != pieces_.end()) {
    symbols.push_back(whole->second);
  } else {
    if (piece.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      throw Error(ErrorKind::invalid_argument, file_, str("a piece of ", piece.size(), " bytes is too long"),
                  "encode the text in parts");
    }
    byte_level_ ? split_bytes(piece, symbols) : split_characters(piece, symbols);
    symbols.size() <= kShortPiece ? merge_short(symbols) : merge_long(symbols, scratch);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (remember && scratch.seen_.size() < kSeenPiecesMax) {
    scratch.seen_.emplace(piece, BpeScratch::Range{scratch.seen_ids_.size(), symbols.size()});
    scratch.seen_ids_.insert(scratch.seen_ids_.end(), symbols.begin(), symbols.end());
  }
}

void Bpe::no_entry(std::string_view symbol) const {
  std::string bytes;
  for (const char c : symbol) bytes += byte_entry(static_cast<unsigned char>(c));
  throw Error(ErrorKind::invalid_argument, file_,
              str("the vocabulary has no entry for ", bytes, " of the text"),
              "use a tokenizer with an entry for every byte, or with an unk_token");
}

void Bpe::split_bytes(std::string_view piece, std::vector<int32_t>& symbols) const {
  for (size_t i = 0; i < piece.size(); ++i) {
    int32_t id = byte_ids_[static_cast<unsigned char>(piece[i])];
    if (id < 0) {
      if (unknown_ < 0) no_entry(piece.substr(i, 1));
      id = unknown_;
      const bool after_unknown = i > 0 && byte_ids_[static_cast<unsigned char>(piece[i - 1])] < 0;
      if (fuse_unknown_ && after_unknown) continue;
    }
    symbols.push_back(id);
  }
}

void Bpe::split_characters(std::string_view piece, std::vector<int32_t>& symbols) const {
  bool after_unknown = false;
  for (size_t at = 0; at < piece.size();) {
    const std::string_view character = piece.substr(at, utf8_length(piece[at]));
    at += character.size();
    const auto found = vocabulary_.find(character);
    if (found != vocabulary_.end()) {
      symbols.push_back(found->second);
      after_unknown = false;
      continue;
    }
    const auto entry = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
    if (byte_fallback_ &&
        std::all_of(character.begin(), character.end(), [&](char c) { return entry(c) >= 0; })) {
      for (const char c : character) symbols.push_back(entry(c));
      after_unknown = false;
      continue;
    }
    if (unknown_ < 0) no_entry(character);
    if (!(fuse_unknown_ && after_unknown)) symbols.push_back(unknown_);
    after_unknown = true;
  }
}

void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  size_t count = symbols.size();
  MergeTable::Merge pairs[kShortPiece];  // pairs[i]: symbols i and i + 1
  const auto look_up = [&](size_t i) {
    pairs[i] = merges_->find(symbols[i], symbols[i + 1]);
    if (pairs[i].id < 0) pairs[i].rank = kNoRank;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    symbols[best] = pairs[best].id;
    std::move(symbols.data() + best + 2, symbols.data() + count, symbols.data() + best + 1);
    if (best + 2 < count) std::move(pairs + best + 2, pairs + count - 1, pairs + best + 1);
    --count;
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  symbols.resize(count);
}

// A heap of (rank, place) over a linked list: n log n. An entry is stale when its place's pair has another
// rank now.
void Bpe::merge_long(std::vector<int32_t>& symbols, BpeScratch& scratch) const {
  std::vector<BpeScratch::Node>& nodes = scratch.nodes_;
  std::vector<uint64_t>& queue = scratch.queue_;
  const auto count = static_cast<int32_t>(symbols.size());
  nodes.resize(symbols.size());
  queue.clear();
  const auto node = [&](int32_t i) -> BpeScratch::Node& { return nodes[static_cast<size_t>(i)]; };
  // Returns the queue entry, or kNoEntry for a pair without a merge.
  constexpr uint64_t kNoEntry = ~uint64_t{0};
  const auto look_up = [&](int32_t i) {
    BpeScratch::Node& left = node(i);
    left.rank = kNoRank;
    if (left.next < 0) return kNoEntry;
    const MergeTable::Merge merge = merges_->find(left.id, node(left.next).id);
    if (merge.id < 0) return kNoEntry;
    left.rank = merge.rank;
    left.merged = merge.id;
    return static_cast<uint64_t>(merge.rank) << 32 | static_cast<uint32_t>(i);
  };
  for (int32_t i = 0; i < count; ++i) {
    node(i) = {symbols[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1, kNoRank, -1};
  }
  for (int32_t i = 0; i < count; ++i) {
    if (const uint64_t entry = look_up(i); entry != kNoEntry) queue.push_back(entry);
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto push = [&](int32_t i) {
    const uint64_t entry = look_up(i);
    if (entry == kNoEntry) return;
    queue.push_back(entry);
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const uint64_t entry = queue.back();
    queue.pop_back();
    const auto place = static_cast<int32_t>(static_cast<uint32_t>(entry));
    BpeScratch::Node& left = node(place);
    if (left.rank != static_cast<uint32_t>(entry >> 32)) continue;
    BpeScratch::Node& right = node(left.next);
    left.id = left.merged;
    left.next = right.next;
    right.rank = kNoRank;  // gone: its entries are stale
    if (left.next >= 0) node(left.next).previous = place;
    push(place);
    if (left.previous >= 0) push(left.previous);
  }
  symbols.clear();
  for (int32_t i = 0; i >= 0; i = node(i).next) symbols.push_back(node(i).id);
}

}  // namespace gramian::tokenizer
