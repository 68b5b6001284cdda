#include "kernels/delta_rule/delta_rule.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/delta_rule/delta_rule_ref.h"
#include "kernels/float16.h"
#include "kernels/wide_vectors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gramian {
namespace {

constexpr int64_t kChunk = 12;       // tokens
constexpr int64_t kPad = 16;         // vectors are filled up with zeros to a multiple of this
constexpr int64_t kColumnsMax = 32;  // columns of a panel of the state
constexpr int kTileRowsMax = 6;
constexpr float kNothing = 1e-35f;  // a decay below this counts as 0
// Multiply-adds below which starting threads costs more than it gains.
constexpr double kWorthThreads = 8e6;

constexpr int64_t padded(int64_t width) { return (width + kPad - 1) / kPad * kPad; }

// Up to kChunk tokens, and the state that runs over them.
struct Chunk {
  int64_t tokens;
  float*
      kq;  // [2 tokens][padded(d_k)]: k and q of each token, normalised; decays a channel from the start on them
  float* k_end;  // [tokens][padded(d_k)]: k, decays a channel to the end on them
  int64_t k_end_stride;
  float* v;           // [tokens][padded(d_v)], and what the last panel of columns reads behind them
  float* beta;        // [tokens][kPad], one number at its head
  float* decay;       // [padded(d_k)]
  float* kept;        // [padded(d_k)]: what the chunk leaves of the state
  float* with_k;      // [tokens][kChunk]: k_i D_ij k_j, j < i
  float* with_q;      // [tokens][kChunk]: q_i D_ij k_j, j <= i
  float* solved;      // [2 tokens][kPad]
  float* from_start;  // [tokens]: D_i0, with decays a channel 1
  float* to_end;      // [tokens]: D_Li, with decays a channel 1
  float* panels;      // the state's columns: [padded(d_k)][columns] one behind the other
};

// One (value) head of one row.
struct TokenVectors {
  DType type = DType::f32;
  const void* data = nullptr;
  int64_t stride = 0;  // elements from token to token
};
struct DeltaHead {
  int64_t tokens = 0, d_k = 0, d_v = 0;
  bool per_channel = false;
  TokenVectors q, k, v, g, beta;
  float* state = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// A panel's rows: the last tile of them may be filled up.
constexpr int64_t panel_rows(int64_t d_k) { return padded(d_k + kTileRowsMax); }

#define GRAMIAN_BODY "kernels/delta_rule/delta_rule-inl.h"
#include "kernels/each_fma_level.h"

struct alignas(64) CacheLine {
  float value[kPad];
};

// Hands out parts of a head's scratch, or counts them.
Chunk lay_out(const DeltaHead& head, float* scratch, int64_t& floats) {
  const int64_t length = std::min(kChunk, head.tokens), keys = padded(head.d_k), values = padded(head.d_v);
  floats = 0;
  const auto take = [&](int64_t count) {
    float* const part = scratch == nullptr ? nullptr : scratch + floats;
    floats += padded(count);
    return part;
  };
  float* const kq = take(2 * kChunk * keys);
  return {.tokens = 0,
          .kq = kq,
          .k_end = head.per_channel ? take(length * keys) : kq,
          .k_end_stride = head.per_channel ? keys : 2 * keys,
          .v = take(length * values + kColumnsMax),
          .beta = take(length * kPad),
          .decay = take(keys),
          .kept = take(keys),
          .with_k = take(kChunk * kChunk),
          .with_q = take(kChunk * kChunk),
          .solved = take(2 * kChunk * kPad),
          .from_start = take(kChunk),
          .to_end = take(kChunk),
          .panels = take(panel_rows(head.d_k) * (values + kColumnsMax - kPad))};
}

#if defined(__x86_64__)
void run_with_scratch(decltype(&avx2::run_head) run, const DeltaHead& head) {
  int64_t floats;
  lay_out(head, nullptr, floats);
  std::vector<CacheLine> scratch(static_cast<size_t>(floats / kPad));
  run(head, lay_out(head, scratch.data()->value, floats));
}
#endif

TokenVectors vectors_of(const HeadVectors& x, int64_t row, int64_t head) {
  const int64_t bytes =
      (row * x.row_stride + head * x.head_stride) * static_cast<int64_t>(dtype_bytes(x.type));
  return {.type = x.type, .data = static_cast<const char*>(x.data) + bytes, .stride = x.token_stride};
}

DeltaHead head_of(const DeltaRule& rule, int64_t row, int64_t head) {
  const int64_t key_head = head / (rule.heads / rule.key_heads);
  return {.tokens = rule.tokens,
          .d_k = rule.d_k,
          .d_v = rule.d_v,
          .per_channel = rule.per_channel,
          .q = vectors_of(rule.q, row, key_head),
          .k = vectors_of(rule.k, row, key_head),
          .v = vectors_of(rule.v, row, head),
          .g = vectors_of(rule.g, row, head),
          .beta = vectors_of(rule.beta, row, head),
          .state = rule.state + (row * rule.heads + head) * rule.d_k * rule.d_v,
          .out = rule.out + (row * rule.tokens * rule.heads + head) * rule.d_v,
          .out_stride = rule.heads * rule.d_v};
}

}  // namespace

int64_t delta_scratch_bytes(const DeltaRule& rule) noexcept {
  int64_t floats;
  lay_out(head_of(rule, 0, 0), nullptr, floats);
  return floats * static_cast<int64_t>(sizeof(float));
}

void run_delta_rule(CpuLevel level, const DeltaRule& rule, int threads) {
  const int64_t count = rule.rows * rule.heads;
  const auto task = [&](int64_t i) {
    const int64_t row = i / rule.heads, head = i % rule.heads;
#if defined(__x86_64__)
    if (level >= CpuLevel::avx512) return run_with_scratch(avx512::run_head, head_of(rule, row, head));
    if (level >= CpuLevel::avx2) return run_with_scratch(avx2::run_head, head_of(rule, row, head));
#endif
    static_cast<void>(level);
    reference::run_delta_head(rule, row, head);
  };
  const double work = 3.0 * static_cast<double>(count * rule.tokens * rule.d_k * rule.d_v);
  if (threads > 1 && count > 1 && work >= kWorthThreads)
    return ThreadPool(static_cast<int>(std::min<int64_t>(threads, count))).run(count, task);
  for (int64_t i = 0; i < count; ++i) task(i);
}

}  // namespace gramian
