#include "stats/token_batch.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/gram/gram.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr int64_t kCopyBytes = 4 << 20;
// Kernels pack as many values, or pairs of them, of a column before they add to the sum.
constexpr int64_t kWhole = 2 * gram::kDepth;
constexpr int64_t kIndexRows = 4 * kWhole;

// Rows of a copy: a multiple of kWhole, so that it does not show where copies end.
int64_t copied_rows(int64_t columns, at::ScalarType type) {
  const auto bytes = static_cast<int64_t>(c10::elementSize(type));
  return std::clamp<int64_t>(kCopyBytes / (bytes * columns) / kWhole, 1, 4) * kWhole;
}

at::Tensor converted(const at::Tensor& x, const PieceRule& rule) {
  const at::Tensor rounded = rule.round_to_bf16 ? x.to(at::kBFloat16) : x;
  return rounded.to(*rule.copy_as).contiguous();
}

std::string shape_of(const at::Tensor& tensor) {
  std::string text = "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text += (i > 0 ? ", " : "") + std::to_string(tensor.size(i));
  return text + "]";
}

}  // namespace

TokenBatch::TokenBatch(const at::Tensor& rows, const at::Tensor& keep, int64_t columns) {
  refuse_shape(rows, keep, columns);
  rows_ = rows.reshape({rows.numel() / columns, columns});
  tokens_ = rows_.size(0);
  if (!keep.defined()) return;
  const at::Tensor flat = keep.reshape({-1}).to(at::kCPU);
  keep_ = (flat.scalar_type() == at::kBool ? flat : flat.ne(0)).contiguous();
  tokens_ = std::count(keep_.const_data_ptr<bool>(), keep_.const_data_ptr<bool>() + keep_.numel(), true);
}

void TokenBatch::refuse_shape(const at::Tensor& rows, const at::Tensor& keep, int64_t columns) const {
  const auto refuse = [](const std::string& what, const std::string& hint = "") {
    throw Error(ErrorKind::invalid_argument, "calibration input", what, hint);
  };
  if (!rows.defined() || rows.dim() < 1 || rows.size(-1) != columns || !rows.is_floating_point()) {
    refuse(rows.defined() ? str("expected float rows of ", columns, " features, found ", shape_of(rows),
                                " of ", rows.dtype().name())
                          : str("expected float rows of ", columns, " features, found no tensor"));
  }
  if (!keep.defined()) return;
  const bool integers = keep.scalar_type() == at::kBool || c10::isIntegralType(keep.scalar_type(), false);
  if (!integers) refuse(str("a mask of ", keep.dtype().name()), "masks are bool or integers");
  const auto leading = rows.sizes().slice(0, static_cast<size_t>(rows.dim() - 1));
  const bool flat = keep.dim() == 1 && keep.numel() * columns == rows.numel();
  if (keep.sizes() != leading && !flat) {
    refuse(str("rows ", shape_of(rows), " with a mask ", shape_of(keep)),
           "a mask has an entry for every token");
  }
}

void TokenBatch::for_each_piece(const PieceRule& rule,
                                const std::function<void(const TokenPiece&)>& work) const {
  const int64_t all = rows_.size(0);
  const int64_t chunk = rule.chunk_rows > 0 ? rule.chunk_rows : std::max<int64_t>(all, 1);
  int64_t most = keep_.defined() ? kIndexRows : all;
  if (rule.copy_as) most = std::min(most, copied_rows(rows_.size(1), *rule.copy_as));
  const bool* const keep = keep_.defined() ? keep_.const_data_ptr<bool>() : nullptr;
  int64_t index[kIndexRows];
  int64_t in_chunk = 0;
  for (int64_t first = 0; first < all;) {
    const int64_t wanted = std::min(most, chunk - in_chunk);
    int64_t end = first, count = 0;
    for (; keep != nullptr && end < all && count < wanted; ++end) {
      if (keep[end]) index[count++] = end - first;
    }
    if (keep == nullptr) {
      count = std::min(wanted, all - first);
      end = first + count;
    }
    if (count == 0) break;
    TokenPiece piece{.x = rows_.slice(0, first, end),
                     .index = keep == nullptr ? nullptr : index,
                     .count = count,
                     .first = first,
                     .offsets = keep == nullptr ? nullptr : index};
    if (rule.copy_as) {
      if (keep != nullptr) {
        const at::Tensor picked = tensor::wrap(index, {count}, at::kLong, nullptr);
        piece.x = piece.x.index_select(0, picked.to(piece.x.device()));
        piece.index = nullptr;
      }
      piece.x = converted(piece.x, rule);
    }
    work(piece);
    in_chunk = (in_chunk + count) % chunk;
    first = end;
  }
}

}  // namespace gramian
