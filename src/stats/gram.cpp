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

gram::Rows rows_of(const TokenPiece& piece) {
  return {.type = tensor::dtype_of(piece.x),
          .data = piece.x.const_data_ptr(),
          .stride = piece.x.stride(0),
          .index = piece.index,
          .count = piece.count,
          .columns = piece.x.size(1)};
}

// In place where the form reads the rows as they are, else copies: LibTorch's in fp32.
PieceRule rule_for(const TokenBatch& batch, const Accumulation& how, GramForm form) {
  PieceRule rule{.chunk_rows = how.chunk_rows, .round_to_bf16 = how.round_to_bf16};
  const at::ScalarType type = batch.rows().scalar_type();
  if (form == GramForm::libtorch || type == at::kDouble) rule.copy_as = at::kFloat;
  if (form == GramForm::libtorch) return rule;
  if (how.round_to_bf16) rule.copy_as = at::kBFloat16;
  if (!rule.copy_as && !kernels_read(batch.rows())) rule.copy_as = type;
  return rule;
}

// fp32 products of bf16 rows: the level below widens them.
CpuLevel level_for(const Accumulation& how) {
  return how.bf16_products ? cpu_level() : std::min(cpu_level(), CpuLevel::avx512_vnni);
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

int threads_of(const ThreadPool* pool) { return pool == nullptr ? 1 : pool->threads(); }

// A thread that lost its core for a while leaves a part to the others; more parts pack more columns twice.
int64_t parts_for(const ThreadPool* pool, double multiply_adds) {
  const int64_t threads = threads_of(pool);
  return threads == 1 || multiply_adds < kWorthThreads ? 1 : 2 * threads;
}

int64_t first_of_kernels(const gram::Rows& rows, ThreadPool* pool) {
  const int64_t parts = parts_for(pool, kScanCost * static_cast<double>(rows.count * rows.columns));
  std::vector<int64_t> found(static_cast<size_t>(parts), -1);
  run_parts(pool, parts, [&](int64_t, int64_t part) {
    const int64_t begin = rows.count * part / parts, end = rows.count * (part + 1) / parts;
    const int64_t first = gram::first_non_finite(cpu_level(), rows.slice(begin, end - begin));
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

void add_batched_blocks(const at::Tensor& sum, const at::Tensor& x) {
  const int64_t blocks = sum.size(0), width = sum.size(1), columns = x.size(1);
  at::Tensor padded = x;
  if (columns != blocks * width) {
    padded = x.new_zeros({x.size(0), blocks * width});
    padded.slice(1, 0, columns).copy_(x);
  }
  const at::Tensor columns_first = padded.reshape({x.size(0), blocks, width}).permute({1, 2, 0});
  sum.baddbmm_(columns_first, columns_first.transpose(1, 2));
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

bool multiplies_bf16(const at::Tensor& x) { return x.is_cpu() && cpu_level() >= CpuLevel::avx512_bf16; }

Accumulation resolve(const AccumulationSettings& settings, const TokenBatch& batch, Log* log) {
  const at::Tensor& x = batch.rows();
  return resolve(settings,
                 {.activations = tensor::dtype_of(x),
                  .columns = x.size(1),
                  .device = x.device().str(),
                  .bf16_products = multiplies_bf16(x)},
                 log);
}

Accumulation resolve_on_cpu(const AccumulationSettings& settings, at::ScalarType activations) {
  Accumulation how = resolve(
      settings,
      {.activations = tensor::dtype_of(activations), .bf16_products = cpu_level() >= CpuLevel::avx512_bf16},
      nullptr);
  how.chunk_rows = 0;
  return how;
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

std::optional<int64_t> first_non_finite(const TokenBatch& batch, ThreadPool* pool, GramForm form) {
  std::optional<int64_t> found;
  batch.for_each_piece(rule_for(batch, {}, form), [&](const TokenPiece& piece) {
    if (found) return;
    const int64_t row =
        form == GramForm::kernels ? first_of_kernels(rows_of(piece), pool) : first_of_libtorch(piece.x);
    if (row >= 0) found = piece.place(row);
  });
  return found;
}

void add_gram(const at::Tensor& sum, const TokenBatch& batch, const Accumulation& how,
              GramWorkspaces& workspaces, ThreadPool* pool, GramForm form) {
  batch.for_each_piece(rule_for(batch, how, form), [&](const TokenPiece& piece) {
    if (form == GramForm::libtorch) return add_lower_blocks(sum, piece.x);
    const gram::Rows rows = rows_of(piece);
    const auto columns = static_cast<double>(rows.columns);
    const int64_t parts = parts_for(pool, static_cast<double>(rows.count) * columns * columns / 2);
    gram::Workspace* const workspace = workspaces.get(threads_of(pool));
    run_parts(pool, parts, [&](int64_t slot, int64_t part) {
      gram::add_lower(level_for(how), rows, gram::part_begin(rows.columns, parts, part),
                      gram::part_begin(rows.columns, parts, part + 1), sum.mutable_data_ptr<float>(),
                      sum.stride(0), workspace[slot]);
    });
  });
}

void add_diagonal_blocks(const at::Tensor& sum, const TokenBatch& batch, const Accumulation& how,
                         GramWorkspaces& workspaces, ThreadPool* pool, GramForm form) {
  const int64_t blocks = sum.size(0);
  batch.for_each_piece(rule_for(batch, how, form), [&](const TokenPiece& piece) {
    if (form == GramForm::libtorch) return add_batched_blocks(sum, piece.x);
    const gram::Rows rows = rows_of(piece);
    const auto work = static_cast<double>(rows.count * rows.columns * gram::kBlockWidth);
    const int64_t parts = std::min(parts_for(pool, work), blocks);
    gram::Workspace* const workspace = workspaces.get(threads_of(pool));
    run_parts(pool, parts, [&](int64_t slot, int64_t part) {
      gram::add_blocks(level_for(how), rows, blocks * part / parts, blocks * (part + 1) / parts,
                       sum.mutable_data_ptr<float>(), workspace[slot]);
    });
  });
}

void add_column_squares(const at::Tensor& sum, const TokenBatch& batch, ThreadPool* pool, GramForm form) {
  batch.for_each_piece(rule_for(batch, {}, form), [&](const TokenPiece& piece) {
    if (form == GramForm::libtorch) {
      sum.add_(piece.x.to(at::kDouble).square_().sum(0));
      return;
    }
    const gram::Rows rows = rows_of(piece);
    const int64_t parts =
        std::min(parts_for(pool, kScanCost * static_cast<double>(rows.count * rows.columns)), rows.columns);
    run_parts(pool, parts, [&](int64_t, int64_t part) {
      gram::add_column_squares(cpu_level(), rows, rows.columns * part / parts,
                               rows.columns * (part + 1) / parts, sum.mutable_data_ptr<double>());
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
