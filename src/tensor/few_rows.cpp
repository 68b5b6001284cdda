#include "tensor/few_rows.h"

#include <algorithm>

#include "kernels/gemv/gemv.h"

namespace gramian::tensor {
namespace {

constexpr int64_t kFewRows = 4;
constexpr int64_t kChannelsOfTask = 512;

bool is_stored_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kChar;
}

}  // namespace

at::Tensor few_rows_product(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& scales,
                            ThreadPool* pool) {
  const int64_t rows = x.size(0), n = matrix.size(0), k = matrix.size(1);
  if (rows == 0 || rows > kFewRows || !x.is_cpu() || x.scalar_type() != at::kFloat) return {};
  if (!matrix.is_cpu() || !matrix.is_contiguous() || !is_stored_type(matrix.scalar_type())) return {};
  const at::Tensor input = x.contiguous();
  at::Tensor out = empty({rows, n}, at::kFloat);
  const StoredMatrix stored{.type = dtype_of(matrix),
                            .values = matrix.const_data_ptr(),
                            .scales = scales.defined() ? scales.const_data_ptr<float>() : nullptr,
                            .columns = k};
  const auto* from = input.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  const CpuLevel level = cpu_level();
  const auto task = [&](int64_t index) {
    const int64_t first = index * kChannelsOfTask, count = std::min(kChannelsOfTask, n - first);
    for (int64_t r = 0; r < rows; ++r) multiply_vector(level, stored, from + r * k, first, count, to + r * n);
  };
  const int64_t tasks = (n + kChannelsOfTask - 1) / kChannelsOfTask;
  if (pool != nullptr) {
    pool->run(tasks, task);
  } else {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  }
  return out;
}

}  // namespace gramian::tensor
