#include "solve/grouping.h"

#include "base/error.h"
#include "kernels/solve/product.h"
#include "tensor/ops.h"

namespace gramian {

Grouping resolve_grouping(const at::Tensor& weight, const GridOptions& grid) {
  if (weight.dim() != 2 || weight.numel() == 0 || !weight.is_floating_point()) {
    throw Error(ErrorKind::invalid_argument, "weight",
                str("expected a float matrix, found ", weight.dim(), " dimensions and ", weight.numel(),
                    " elements of ", weight.dtype().name()));
  }
  Grouping grouping;
  grouping.rows = weight.size(0);
  grouping.columns = weight.size(1);
  grouping.per_row = grid.group_size == -1;
  grouping.group_size = grouping.per_row ? grouping.columns : grid.group_size;
  const bool qqq = grid.kind == GridKind::qqq;
  if (grouping.group_size <= 0 || (qqq && grouping.columns % grouping.group_size != 0)) {
    throw Error(ErrorKind::invalid_argument, "group_size",
                str(grid.group_size, " does not divide the ", grouping.columns, " input features"),
                "use -1 for one scale per row");
  }
  if (qqq ? grid.bits != 4 || !grid.symmetric
          : grid.bits != 2 && grid.bits != 3 && grid.bits != 4 && grid.bits != 8) {
    throw Error(ErrorKind::invalid_argument, "bits",
                str(grid.bits, grid.symmetric ? ", symmetric" : ", asymmetric"),
                qqq ? "QQQ has 4 bits, symmetric" : "use 2, 3, 4 or 8");
  }
  grouping.rule = {.bits = grid.bits,
                   .narrow = qqq && grouping.per_row,
                   .asymmetric = !grid.symmetric,
                   .one_sided = grid.one_sided_range,
                   .mse = grid.mse};
  return grouping;
}

at::Tensor finite_weight(const at::Tensor& weight) {
  at::Tensor w = weight.to(at::kFloat).contiguous();
  // A sum of magnitudes may overflow though every entry is finite; only then look at each.
  if (!w.abs().sum().isfinite().item<bool>()) {
    const int64_t bad = w.isfinite().logical_not().sum().item<int64_t>();
    if (bad > 0) {
      throw Error(ErrorKind::numerical, "weight", str(bad, " of ", w.numel(), " entries are NaN or infinite"),
                  "the source checkpoint is damaged");
    }
  }
  return w;
}

void check_scales(const at::Tensor& scale) {
  if (!scale.isfinite().all().item<bool>()) {
    throw Error(ErrorKind::numerical, "weight", "magnitudes too large: a group's scale leaves its type");
  }
}

QuantizedLinear empty_result(const Grouping& grouping, bool zero_points) {
  QuantizedLinear result;
  result.bits = grouping.rule.bits;
  result.group_size = grouping.group_size;
  result.codes = tensor::empty({grouping.rows, grouping.columns}, at::kChar);
  result.scale = tensor::empty({grouping.rows, grouping.groups()}, at::kFloat);
  if (zero_points || grouping.rule.asymmetric) result.zero = tensor::zeros(result.scale.sizes(), at::kChar);
  return result;
}

std::vector<float> rows_to_lanes(const float* rows, int64_t count, int64_t columns) {
  std::vector<float> lanes(static_cast<size_t>(columns * kBlockRows));
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t j = 0; j < columns; ++j)
      lanes[static_cast<size_t>(j * kBlockRows + r)] = rows[r * columns + j];
  }
  return lanes;
}

void note_factor(QuantizedLinear& result, const Factor& factor) {
  result.damp = factor.damp;
  result.damp_attempts = factor.attempts;
  result.diagonal_spread = factor.diagonal_spread;
  result.dead_columns = factor.dead.sum().item<int64_t>();
}

float stored_scale(float scale, at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return scale;
    case at::kHalf: {
      const auto stored = static_cast<float>(c10::Half(scale));
      return stored == 0 ? 0x1p-24f : stored;
    }
    case at::kBFloat16: {
      const auto stored = static_cast<float>(c10::BFloat16(scale));
      return stored == 0 ? 0x1p-133f : stored;
    }
    default:
      throw Error(ErrorKind::internal, "scale", "is not stored in this type");
  }
}

}  // namespace gramian
