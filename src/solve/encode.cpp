#include "solve/encode.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/cpu_level.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr double kLeastImportance = 1e-4;  // share of the mean

bool all_zero(const float* values, int64_t count) {
  return std::all_of(values, values + count, [](float value) { return value == 0; });
}

}  // namespace

ColumnImportance mean_squares(const at::Tensor& squares, int64_t tokens) {
  GRAMIAN_CHECK(tokens > 0, "mean squares of nothing");
  at::Tensor mean = squares.to(at::kFloat).div(static_cast<float>(tokens)).contiguous();
  const at::Tensor empty = mean.eq(0);
  ColumnImportance importance{mean, empty.sum().item<int64_t>()};
  if (importance.without_data == 0) return importance;
  const double all = mean.to(at::kDouble).mean().item<double>();
  mean.masked_fill_(empty, all > 0 ? kLeastImportance * all : 1.0);
  return importance;
}

const Codec& fitting_codec(const Codec& asked, int64_t columns) {
  struct Fallback {
    const char *from, *to;
  };
  constexpr Fallback kFallbacks[] = {
      {"IQ2_XXS", "IQ4_NL"}, {"Q2_K", "Q4_0"}, {"Q4_K", "Q5_0"}, {"Q5_K", "Q5_1"}, {"Q6_K", "Q8_0"}};
  const Codec* codec = &asked;
  for (const Fallback& fallback : kFallbacks) {
    if (columns % codec->block != 0 && codec->name == fallback.from) codec = find_codec(fallback.to);
  }
  return columns % codec->block == 0 ? *codec : *find_codec("F16");
}

at::Tensor decode_blocks(const Codec& codec, const at::Tensor& blocks, int64_t columns, ThreadPool* pool) {
  const at::Tensor plain = blocks.contiguous();
  at::Tensor values = tensor::empty({plain.size(0), columns}, at::kFloat);
  decode_rows(codec, plain.const_data_ptr<uint8_t>(), plain.size(0), columns, pool,
              values.mutable_data_ptr<float>());
  return values;
}

QuantizedLinear solve_encode(const at::Tensor& weight, const ColumnImportance& importance,
                             const GridOptions& grid, ThreadPool& pool) {
  const Codec& codec = *grid.codec;
  const at::Tensor w = weight.to(at::kFloat).contiguous();
  const int64_t rows = w.size(0), columns = w.size(1);
  const at::Tensor ones = tensor::full({columns}, 1, at::kFloat);
  at::Tensor weights = importance.weights;
  if (!weights.defined() && codec.needs_importance) weights = ones;
  QuantizedLinear result;
  result.codec = &codec;
  result.group_size = codec.block;
  result.dead_columns = importance.without_data;
  result.blocks = tensor::empty({rows, codec.row_bytes(columns)}, at::kByte);
  auto* blocks = result.blocks.mutable_data_ptr<uint8_t>();
  const float* values = w.const_data_ptr<float>();
  EncodeRowsOptions options{.importance = weights.defined() ? weights.const_data_ptr<float>() : nullptr,
                            .anchored = grid.anchored && codec.anchored != nullptr,
                            .level = cpu_level(),
                            .pool = &pool};
  encode_rows(codec, values, rows, columns, options, blocks, "weight");
  const at::Tensor decoded = decode_blocks(codec, result.blocks, columns, &pool);
  options.importance = ones.const_data_ptr<float>();
  options.pool = nullptr;
  for (int64_t block = 0; block < rows * columns / codec.block; ++block) {
    if (!all_zero(decoded.const_data_ptr<float>() + block * codec.block, codec.block)) continue;
    const float* source = values + block * codec.block;
    if (all_zero(source, codec.block)) {
      ++result.zero_groups;
    } else if (weights.defined()) {
      encode_rows(codec, source, 1, codec.block, options, blocks + block * codec.bytes, "weight");
    }
  }
  return result;
}

}  // namespace gramian
