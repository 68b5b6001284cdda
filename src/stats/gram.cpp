#include "stats/gram.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

#include "kernels/gram/gram.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr int64_t kChunkRows = 2048;
constexpr int64_t kChunkBytes = 4 << 20;  // of widened or gathered rows
// Width of the column blocks of LibTorch's lower triangle. The blocks on the diagonal are computed in full: narrower
// saves more of the product, wider multiplies faster.
constexpr int64_t kBlock = 512;
// Multiply-adds below which waking threads costs more than it gains.
constexpr double kWorthThreads = 4e6;
constexpr double kScanCost = 8;  // of one value, in multiply-adds

bool kernels_read(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) &&
         (x.stride(1) == 1 || x.size(1) == 1);
}

gram::Rows rows_of(const at::Tensor& x) {
  return {.type = tensor::dtype_of(x),
          .data = x.const_data_ptr(),
          .stride = x.stride(0),
          .count = x.size(0),
          .columns = x.size(1)};
}

// work(rows, first) on x as it is where the kernels can read that, else on copies of a few rows as fp32.
void in_chunks(const at::Tensor& x, bool as_it_is, const auto& work) {
  if (as_it_is) return work(x, int64_t{0});
  const int64_t step = std::clamp<int64_t>(kChunkBytes / (4 * x.size(1)), 1, kChunkRows);
  for (int64_t first = 0; first < x.size(0); first += step) {
    work(x.slice(0, first, std::min(first + step, x.size(0))).to(at::kFloat).contiguous(), first);
  }
}

// task(slot, part) for every part; parts of one slot run one after another.
void run_parts(ThreadPool* pool, int64_t parts, const std::function<void(int64_t, int64_t)>& task) {
  if (pool == nullptr || parts == 1) {
    for (int64_t part = 0; part < parts; ++part) task(0, part);
    return;
  }
  std::atomic<int64_t> next = 0;
  pool->run(pool->threads(), [&](int64_t slot) {
    for (int64_t part = next++; part < parts; part = next++) task(slot, part);
  });
}

// A thread that lost its core for a while leaves a part to the others; more parts pack more columns twice.
int64_t parts_for(const ThreadPool* pool, double multiply_adds) {
  const int64_t threads = pool == nullptr ? 1 : pool->threads();
  return threads == 1 || multiply_adds < kWorthThreads ? 1 : 2 * threads;
}

int64_t first_of_kernels(const gram::Rows& rows, ThreadPool* pool) {
  const int64_t parts = parts_for(pool, kScanCost * static_cast<double>(rows.count * rows.columns));
  std::vector<int64_t> found(static_cast<size_t>(parts), -1);
  run_parts(pool, parts, [&](int64_t, int64_t part) {
    const int64_t begin = rows.count * part / parts, end = rows.count * (part + 1) / parts;
    const int64_t first = first_non_finite(cpu_level(), rows.slice(begin, end - begin));
    if (first >= 0) found[static_cast<size_t>(part)] = begin + first;
  });
  const auto first = std::find_if(found.begin(), found.end(), [](int64_t row) { return row >= 0; });
  return first == found.end() ? -1 : *first;
}

// A NaN or an infinity shows in the sum. The sum may also overflow by itself, hence the second look.
int64_t first_of_libtorch(const at::Tensor& chunk) {
  if (chunk.sum().isfinite().item<bool>()) return -1;
  const at::Tensor bad = chunk.isfinite().logical_not();
  return bad.sum().item<int64_t>() == 0 ? -1 : bad.any(1).nonzero().min().item<int64_t>();
}

void add_lower_blocks(const at::Tensor& sum, const at::Tensor& x) {
  const int64_t columns = x.size(1);
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, columns);
    sum.slice(0, begin, columns)
        .slice(1, begin, end)
        .addmm_(x.slice(1, begin, columns).t(), x.slice(1, begin, end));
  }
}

void mirror_blocks(const at::Tensor& sum) {
  const int64_t columns = sum.size(0);
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, columns);
    const at::Tensor diagonal = sum.slice(0, begin, end).slice(1, begin, end);
    diagonal.copy_(diagonal.tril().add_(diagonal.tril(-1).t()));
    sum.slice(0, begin, end)
        .slice(1, end, columns)
        .copy_(sum.slice(0, end, columns).slice(1, begin, end).t());
  }
}

}  // namespace

GramForm gram_form(const at::Tensor& x) {
  return x.is_cpu() && cpu_level() >= CpuLevel::avx2 ? GramForm::kernels : GramForm::libtorch;
}

GramWorkspaces::GramWorkspaces() = default;
GramWorkspaces::~GramWorkspaces() = default;
gram::Workspace* GramWorkspaces::get(int threads) {
  if (threads > count_) {
    workspaces_ = std::make_unique_for_overwrite<gram::Workspace[]>(static_cast<size_t>(threads));
    count_ = threads;
  }
  return workspaces_.get();
}

std::optional<int64_t> first_non_finite(const at::Tensor& x, ThreadPool* pool, GramForm form) {
  std::optional<int64_t> found;
  in_chunks(x, form == GramForm::kernels && kernels_read(x), [&](const at::Tensor& chunk, int64_t first) {
    if (found) return;
    const int64_t row =
        form == GramForm::kernels ? first_of_kernels(rows_of(chunk), pool) : first_of_libtorch(chunk);
    if (row >= 0) found = first + row;
  });
  return found;
}

void add_gram(const at::Tensor& sum, const at::Tensor& x, GramWorkspaces& workspaces, ThreadPool* pool,
              GramForm form) {
  in_chunks(x, form == GramForm::kernels && kernels_read(x), [&](const at::Tensor& chunk, int64_t) {
    if (form == GramForm::libtorch) return add_lower_blocks(sum, chunk);
    const gram::Rows rows = rows_of(chunk);
    const auto columns = static_cast<double>(rows.columns);
    const int64_t parts = parts_for(pool, static_cast<double>(rows.count) * columns * columns / 2);
    gram::Workspace* const workspace = workspaces.get(pool == nullptr ? 1 : pool->threads());
    run_parts(pool, parts, [&](int64_t slot, int64_t part) {
      add_lower(cpu_level(), rows, gram::part_begin(rows.columns, parts, part),
                gram::part_begin(rows.columns, parts, part + 1), sum.mutable_data_ptr<float>(), sum.stride(0),
                workspace[slot]);
    });
  });
}

void finish_gram(const at::Tensor& sum, double factor, GramForm form) {
  if (form == GramForm::kernels) {
    return gram::scale_and_mirror(sum.mutable_data_ptr<float>(), sum.size(0), sum.stride(0),
                                  static_cast<float>(factor));
  }
  sum.mul_(factor);
  mirror_blocks(sum);
}

}  // namespace gramian
