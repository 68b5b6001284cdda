#include "kernels/factor/factor.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "kernels/wide_vectors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gramian::factor {
namespace {

constexpr int64_t kGroup = 8;   // panels multiplied together: packed, they stay in the cache (L2)
constexpr int64_t kStrip = 10;  // panels of rows in one part
constexpr int64_t kSpread = 2;  // panels finished by one task
// Multiply-adds below which waking threads costs more than it gains.
constexpr double kWorthThreads = 4e6;

enum class Store { sum, subtract, negative };

// One block of rows, once they are packed.
struct Step {
  float* a;
  int64_t stride, columns;
  float* packed;          // panel[kBlock][kPanel] for each panel of a
  int64_t first, panels;  // the block's panels on the diagonal
};

// Row panels [top, bottom) and panels [left, right).
struct Part {
  int64_t top, bottom, left, right;
};

namespace baseline {
#define GRAMIAN_TARGET
typedef float Floats __attribute__((vector_size(16)));
constexpr int kLanes = 4;
inline Floats broadcast(const float* value) { return Floats{} + *value; }
inline Floats multiply_add(Floats a, Floats b, Floats sum) { return sum + a * b; }
#include "kernels/factor/factor-inl.h"
#undef GRAMIAN_TARGET
}  // namespace baseline

#define GRAMIAN_BODY "kernels/factor/factor-inl.h"
#include "kernels/each_fma_level.h"

struct Functions {
  decltype(&baseline::finish_diagonal) finish_diagonal;
  decltype(&baseline::finish_panel) finish_panel;
  decltype(&baseline::update) update;
};

Functions functions(CpuLevel level) {
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return {avx512::finish_diagonal, avx512::finish_panel, avx512::update};
  if (level >= CpuLevel::avx2) return {avx2::finish_diagonal, avx2::finish_panel, avx2::update};
#else
  static_cast<void>(level);
#endif
  return {baseline::finish_diagonal, baseline::finish_panel, baseline::update};
}

int64_t panels_of(int64_t columns) { return (columns + kPanel - 1) / kPanel; }
// Of a block of rows, and of its own U, transposed.
int64_t packed_floats(int64_t columns) { return (panels_of(columns) * kPanel + kBlock) * kBlock; }

void run(ThreadPool* pool, double multiply_adds, int64_t count, const std::function<void(int64_t)>& task) {
  if (pool != nullptr && multiply_adds >= kWorthThreads) return pool->run(count, task);
  for (int64_t i = 0; i < count; ++i) task(i);
}

struct AlignedDelete {
  void operator()(float* data) const { ::operator delete[](data, std::align_val_t{64}); }
};

// The whole matrix: blocks of rows from last to first. With or without U.
class Elimination {
 public:
  Elimination(CpuLevel level, float* a, int64_t columns, int64_t stride, bool inverse, ThreadPool* pool)
      : kernels_(functions(level)),
        a_(a),
        columns_(columns),
        stride_(stride),
        inverse_(inverse),
        pool_(pool),
        packed_(new (std::align_val_t{64}) float[packed_floats(columns)]),
        transposed_(packed_.get() + panels_of(columns) * kPanel * kBlock) {}

  bool run_all() {
    // Whole blocks from the last panel on; what is left over is the top one, with nothing above it to update.
    for (int64_t end = panels_of(columns_), first = 0; end > 0; end = first) {
      first = std::max<int64_t>(0, end - kBlock / kPanel);
      if (!finish_rows(first * kPanel, std::min(end * kPanel, columns_))) return false;
    }
    return true;
  }

 private:
  float* panel(int64_t p) const { return packed_.get() + p * kPanel * kBlock; }
  int64_t width(int64_t p) const { return std::min(kPanel, columns_ - p * kPanel); }

  bool finish_rows(int64_t begin, int64_t end) {
    const int64_t first = begin / kPanel, panels = panels_of(end) - first;
    const int64_t all = inverse_ ? panels_of(columns_) : first + panels;
    for (int64_t p = first; p < first + panels; ++p) load(begin, end, p);
    const int64_t last = end - begin - (panels - 1) * kPanel;
    if (!kernels_.finish_diagonal(panel(first), panels, last, transposed_)) return false;
    for (int64_t p = first; p < first + panels; ++p) store(begin, end, p, first);
    const int64_t others = all - panels;
    const auto rows = static_cast<double>(panels * kPanel);
    run(pool_, rows * rows / 2 * static_cast<double>(others * kPanel), (others + kSpread - 1) / kSpread,
        [&](int64_t task) {
          for (int64_t i = task * kSpread; i < std::min((task + 1) * kSpread, others); ++i) {
            const int64_t p = i < first ? i : i + panels;
            load(begin, end, p);
            kernels_.finish_panel(transposed_, panels, panel(p));
            store(begin, end, p, first);
          }
        });
    const Step step = {.a = a_,
                       .stride = stride_,
                       .columns = columns_,
                       .packed = packed_.get(),
                       .first = first,
                       .panels = panels};
    const std::vector<Part> parts = parts_above(first, all);
    run(pool_, rows * static_cast<double>(begin * (all * kPanel - begin / 2)),
        static_cast<int64_t>(parts.size()),
        [&](int64_t i) { kernels_.update(step, parts[static_cast<size_t>(i)]); });
    return true;
  }

  // The ones at the diagonal are smaller than the others, so they come last.
  static std::vector<Part> parts_above(int64_t first, int64_t all) {
    std::vector<Part> parts;
    for (int64_t left = first; left < all; left += kGroup) {
      for (int64_t top = 0; top < first; top += kStrip)
        parts.push_back({top, std::min(top + kStrip, first), left, std::min(left + kGroup, all)});
    }
    for (int64_t left = 0; left < first; left += kGroup) {
      for (int64_t top = left; top < first; top += kStrip)
        parts.push_back({top, std::min(top + kStrip, first), left, std::min(left + kGroup, first)});
    }
    return parts;
  }

  // Rows [begin, end) of a panel; what is beyond the matrix counts as 0.
  void load(int64_t begin, int64_t end, int64_t p) const {
    float* row = panel(p);
    const int64_t used = width(p);
    for (int64_t t = begin; t < end; ++t, row += kPanel) {
      std::memcpy(row, a_ + t * stride_ + p * kPanel, static_cast<size_t>(used) * sizeof(float));
      std::fill(row + used, row + kPanel, 0.0f);
    }
    std::fill(row, panel(p) + panels_of(end - begin) * kPanel * kPanel, 0.0f);
  }

  // U as far down as the panel holds it, then zeros: Rᵀ is not needed any more.
  void store(int64_t begin, int64_t end, int64_t p, int64_t first) const {
    if (!inverse_) return;
    const int64_t ends = p < first ? begin : std::clamp((p + 1) * kPanel, begin, end);
    for (int64_t t = begin; t < end; ++t) {
      float* const out = a_ + t * stride_ + p * kPanel;
      const auto bytes = static_cast<size_t>(width(p)) * sizeof(float);
      if (t < ends) {
        std::memcpy(out, panel(p) + (t - begin) * kPanel, bytes);
      } else {
        std::memset(out, 0, bytes);
      }
    }
  }

  Functions kernels_;
  float* a_;
  int64_t columns_, stride_;
  bool inverse_;
  ThreadPool* pool_;
  std::unique_ptr<float[], AlignedDelete> packed_;
  float* transposed_;  // the block's U, in the same memory
};

}  // namespace

bool invert_factor(CpuLevel level, float* a, int64_t columns, int64_t stride, ThreadPool* pool) {
  return Elimination(level, a, columns, stride, true, pool).run_all();
}

bool factors(CpuLevel level, float* a, int64_t columns, int64_t stride, ThreadPool* pool) {
  return Elimination(level, a, columns, stride, false, pool).run_all();
}

int64_t workspace_bytes(int64_t columns) noexcept {
  return packed_floats(columns) * static_cast<int64_t>(sizeof(float)) +
         static_cast<int64_t>(sizeof(Elimination));
}

}  // namespace gramian::factor
