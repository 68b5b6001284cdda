#include "pipeline/ranks.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "stats/gram.h"
#include "tensor/ops.h"

namespace gramian {
using Json = nlohmann::ordered_json;

std::vector<TokenRow> rows_of_rank(const std::vector<TokenRow>& rows, int64_t batch, const Ranks& ranks) {
  const auto size = static_cast<size_t>(batch), all = static_cast<size_t>(ranks.size());
  std::vector<TokenRow> mine;
  for (size_t begin = size * static_cast<size_t>(ranks.rank()); begin < rows.size(); begin += size * all) {
    const size_t end = std::min(begin + size, rows.size());
    mine.insert(mine.end(), rows.begin() + static_cast<std::ptrdiff_t>(begin),
                rows.begin() + static_cast<std::ptrdiff_t>(end));
  }
  if ((rows.size() + size - 1) / size < all) {
    throw Error(
        ErrorKind::invalid_argument, "--batch",
        str(rows.size(), " rows in batches of ", batch, " leave some of ", all, " ranks without rows"),
        "give more --samples, smaller batches or fewer ranks");
  }
  return mine;
}

void reduce(PauseStatistics& statistics, Statistic kind, int64_t columns, Ranks& ranks) {
  const at::Tensor count = tensor::full({1}, static_cast<double>(statistics.tokens), at::kDouble);
  ranks.sum(count);
  const double total = count.item<double>();
  const auto sum = [&](at::Tensor& values, at::IntArrayRef shape, at::ScalarType type) {
    if (!values.defined()) values = tensor::zeros(shape, type);
    ranks.sum(values);
  };
  if (kind == Statistic::importance && total > 0) sum(statistics.squares, {columns}, at::kDouble);
  if (kind == Statistic::local_hessian && total > 0)
    sum(statistics.blocks, {(columns + 15) / 16, 16, 16}, at::kFloat);
  if (kind == Statistic::hessian && total > 0) {
    if (statistics.hessian.defined()) statistics.hessian.mul_(static_cast<double>(statistics.tokens) / total);
    sum(statistics.hessian, {columns, columns}, at::kFloat);
    // A sum of three or more need not be taken in one order everywhere: its upper half is the lower one again.
    finish_gram(statistics.hessian, 1.0, gram_form(statistics.hessian));
  }
  statistics.tokens = static_cast<int64_t>(total);
}

Json from_rank(const Json& given, int from, Ranks& ranks) {
  const std::string text = ranks.rank() == from ? given.dump() : std::string();
  const at::Tensor length = tensor::full({1}, static_cast<double>(text.size()), at::kDouble);
  ranks.broadcast(length, from);
  const at::Tensor bytes = tensor::empty({static_cast<int64_t>(length.item<double>())}, at::kByte);
  if (ranks.rank() == from) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  ranks.broadcast(bytes, from);
  const auto* begin = bytes.const_data_ptr<uint8_t>();
  return Json::parse(begin, begin + bytes.numel());
}

PackedParts from_rank(const PackedParts& given, const PlannedModule& module, int from, Ranks& ranks) {
  PackedParts parts;
  for (const PlannedTensor& part : module.format->parts(module.shape(), module.solve.grid)) {
    const at::Tensor values = ranks.rank() == from
                                  ? given.at(part.name).contiguous()
                                  : tensor::empty(part.shape, tensor::scalar_type(part.dtype));
    if (values.numel() > 0) ranks.broadcast(values, from);
    parts[part.name] = values;
  }
  return parts;
}

}  // namespace gramian
