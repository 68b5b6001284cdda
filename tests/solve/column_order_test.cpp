#include "solve/column_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "tensor/ops.h"

namespace gramian {
namespace {

std::vector<int64_t> order_of(const std::vector<float>& diagonal, ColumnOrder order, int64_t group_size) {
  const auto columns = static_cast<int64_t>(diagonal.size());
  const at::Tensor hessian = tensor::zeros({columns, columns}, at::kFloat);
  hessian.diagonal().copy_(tensor::wrap(diagonal.data(), {columns}, at::kFloat, nullptr));
  const at::Tensor places = column_order(hessian, order, group_size);
  if (!places.defined()) return {};
  const auto* place = places.const_data_ptr<int64_t>();
  return {place, place + columns};
}

TEST(ColumnOrders, ActivationIsDecreasingAndStable) {
  EXPECT_EQ(order_of({3, 5, 5, 0, 0.5f, 9}, ColumnOrder::activation, 2),
            (std::vector<int64_t>{5, 1, 2, 0, 3, 4}));  // a dead column counts as 1
}

TEST(ColumnOrders, GroupAwareKeepsGroupsTogetherAndTheTailLast) {
  EXPECT_EQ(order_of({1, 2, 9, 4, 3, 5, 7}, ColumnOrder::group_aware, 2),
            (std::vector<int64_t>{2, 3, 5, 4, 1, 0, 6}));
}

TEST(ColumnOrders, NaturalIsNone) { EXPECT_TRUE(order_of({1, 2, 3}, ColumnOrder::natural, 2).empty()); }

}  // namespace
}  // namespace gramian
