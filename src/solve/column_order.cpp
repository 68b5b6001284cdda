#include "solve/column_order.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using Iterator = std::vector<int64_t>::iterator;

void sort_decreasing(Iterator begin, Iterator end, const float* diagonal) {
  std::stable_sort(begin, end, [&](int64_t a, int64_t b) { return diagonal[a] > diagonal[b]; });
}

}  // namespace

const char* to_text(ColumnOrder order) {
  return order == ColumnOrder::natural      ? "natural"
         : order == ColumnOrder::activation ? "activation"
                                            : "group-aware";
}

at::Tensor column_order(const at::Tensor& hessian, ColumnOrder order, int64_t group_size) {
  if (order == ColumnOrder::natural) return {};
  const at::Tensor diagonal = hessian.diagonal().to(at::kCPU, at::kFloat).clone();
  diagonal.masked_fill_(diagonal.eq(0), 1);
  const float* weight = diagonal.const_data_ptr<float>();
  const int64_t columns = diagonal.size(0);
  std::vector<int64_t> places(columns);
  std::iota(places.begin(), places.end(), 0);
  if (order == ColumnOrder::activation) {
    sort_decreasing(places.begin(), places.end(), weight);
  } else {
    GRAMIAN_CHECK(group_size > 0, "group-aware order without groups");
    const int64_t groups = columns / group_size;
    std::vector<int64_t> first(groups);  // the largest entry of each group, which is at its head once sorted
    for (int64_t g = 0; g < groups; ++g) {
      const auto begin = places.begin() + g * group_size;
      sort_decreasing(begin, begin + group_size, weight);
      first[g] = *begin;
    }
    sort_decreasing(first.begin(), first.end(), weight);
    std::vector<int64_t> sorted = places;
    for (int64_t g = 0; g < groups; ++g) {
      const auto begin = places.begin() + first[g] / group_size * group_size;
      std::copy(begin, begin + group_size, sorted.begin() + g * group_size);
    }
    places = std::move(sorted);
  }
  return tensor::wrap(places.data(), {columns}, at::kLong, nullptr).clone();
}

}  // namespace gramian
