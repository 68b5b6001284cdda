// The order in which GPTQ visits columns: errors of a column are made good by those that come later, so columns that matter
// go first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gramian {

enum class ColumnOrder {
  natural,
  // Decreasing diagonal of the Hessian ("desc_act"): groups are made of columns that do not lie side by side.
  activation,
  // The same inside each natural group, and whole groups by decreasing largest entry; columns behind the last full group stay
  // last (GPT-QModel's group-aware reordering). Groups stay what they are, so that nothing is to be stored.
  group_aware,
};

const char* to_text(ColumnOrder order);

// hessian: [K, K]. int64 [K], the column at each place, undefined for natural; equal entries keep their order, an entry of 0
// counts as 1. group_size > 0 divides nothing in particular.
at::Tensor column_order(const at::Tensor& hessian, ColumnOrder order, int64_t group_size);

}  // namespace gramian
