// One batch of a linear layer's input: its token rows, and which of them count.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace gramian {

// Some rows of a batch in their order: row index[i] of x for 0 <= i < count, or row i without an index.
struct TokenPiece {
  at::Tensor x;  // [.., columns], on the batch's device
  const int64_t* index = nullptr;
  int64_t count = 0;
  // Where row i lies in the batch.
  int64_t first = 0;
  const int64_t* offsets = nullptr;  // null: 0, 1, 2 ...
  int64_t place(int64_t i) const { return first + (offsets == nullptr ? i : offsets[i]); }
};

// How a batch is divided.
struct PieceRule {
  int64_t chunk_rows = 0;  // counted rows after which a new piece begins; 0: where memory demands it
  // Pieces are contiguous copies of this type instead of the rows in place.
  std::optional<at::ScalarType> copy_as = std::nullopt;
  bool round_to_bf16 = false;  // before that
};

class TokenBatch {
 public:
  // rows [.., columns] of any float type, one token vector for each index of the leading dimensions (none: a single one).
  // `keep`: undefined, or bool or integers over those dimensions, as they are or flattened; tokens where it is 0 do not count
  // and are not read. Throws invalid_argument for other shapes and types.
  TokenBatch(const at::Tensor& rows, const at::Tensor& keep, int64_t columns);

  int64_t tokens() const noexcept { return tokens_; }        // that count
  const at::Tensor& rows() const noexcept { return rows_; }  // [all, columns]
  // Calls work() on the rows that count. Copies and indices take a few MiB at most, whatever the batch's length; where pieces
  // end inside a chunk changes no bits of kernels/gram.
  void for_each_piece(const PieceRule& rule, const std::function<void(const TokenPiece&)>& work) const;

 private:
  void refuse_shape(const at::Tensor& rows, const at::Tensor& keep, int64_t columns) const;
  at::Tensor rows_;
  at::Tensor keep_;  // undefined, or bool [all] on the CPU
  int64_t tokens_ = 0;
};

}  // namespace gramian
