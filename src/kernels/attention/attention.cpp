#include "kernels/attention/attention.h"

#include <bit>
#include <memory>

#include "kernels/float16.h"

namespace gramian {
namespace {

constexpr int kParts = 16;  // that a sum is made of, whatever the width of vectors
constexpr float kOnes[kParts] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Of one key-value head, in floats.
struct Scratch {
  float* q;       // [queries, padded size]
  float* row;     // [the larger padded size]
  float* scores;  // [queries, positions]
  float* out;     // [queries, padded value size]
};

#define GRAMIAN_BODY "kernels/attention/attention-inl.h"
#include "kernels/each_level.h"

int64_t padded(int64_t size) { return (size + kParts - 1) / kParts * kParts; }

void run_head(CpuLevel level, const OneQuery& query, int64_t index, void* out) {
  const int64_t queries = query.heads / query.kv_heads, keys = padded(query.size),
                values = padded(query.value_size);
  const int64_t row_floats = keys > values ? keys : values;
  const auto floats = std::make_unique_for_overwrite<float[]>(
      static_cast<size_t>(queries * (keys + values + query.positions) + row_floats));
  Scratch scratch{};
  scratch.q = floats.get();
  scratch.out = scratch.q + queries * keys;
  scratch.row = scratch.out + queries * values;
  scratch.scores = scratch.row + row_floats;
  const int64_t row = index / query.kv_heads, kv_head = index % query.kv_heads;
#if defined(__x86_64__)
  if (level >= CpuLevel::avx512) return avx512::run(query, row, kv_head, scratch, out);
  if (level >= CpuLevel::avx2) return avx2::run(query, row, kv_head, scratch, out);
#endif
  static_cast<void>(level);
  baseline::run(query, row, kv_head, scratch, out);
}

}  // namespace

void attend_one_query(CpuLevel level, const OneQuery& query, void* out, ThreadPool* pool) {
  // A pool's turn takes as long as some ten thousand products.
  constexpr int64_t kWorthThreads = int64_t{128} << 10;
  const int64_t count = query.rows * query.kv_heads;
  const auto task = [&](int64_t index) { run_head(level, query, index, out); };
  if (pool != nullptr &&
      query.rows * query.heads * query.positions * (query.size + query.value_size) >= kWorthThreads)
    return pool->run(count, task);
  for (int64_t i = 0; i < count; ++i) task(i);
}

}  // namespace gramian
