#include "kernels/codecs/codec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/codecs/iq2_xxs.h"
#include "kernels/codecs/iq4_nl.h"
#include "kernels/codecs/k_quants.h"
#include "kernels/codecs/plain.h"
#include "kernels/codecs/small_blocks.h"

namespace gramian {
namespace {

constexpr Codec kCodecs[] = {
    {"F32", 0, 1, 4, false, encode_f32, decode_f32},
    {"F16", 1, 1, 2, false, encode_f16, decode_f16},
    {"BF16", 30, 1, 2, false, encode_bf16, decode_bf16},
    {"Q8_0", 8, 32, 34, false, encode_q8_0, decode_q8_0},
    {"Q6_K", 14, 256, 210, false, encode_q6_k, decode_q6_k},
    {"Q5_1", 7, 32, 24, false, encode_q5_1, decode_q5_1},
    {"Q5_0", 6, 32, 22, false, encode_q5_0, decode_q5_0},
    {"Q5_K", 13, 256, 176, false, encode_q5_k, decode_q5_k},
    {"Q4_1", 3, 32, 20, false, encode_q4_1, decode_q4_1},
    {"Q4_0", 2, 32, 18, false, encode_q4_0, decode_q4_0},
    {"Q4_K", 12, 256, 144, false, encode_q4_k, decode_q4_k},
    {"IQ4_NL", 20, 32, 18, false, encode_iq4_nl, decode_iq4_nl},
    {"Q2_K", 10, 256, 84, false, encode_q2_k, decode_q2_k},
    {"IQ2_XXS", 16, 256, 66, true, encode_iq2_xxs, decode_iq2_xxs, encode_iq2_xxs_anchored},
};

// Rows that one task takes, so that a task is worth its start.
constexpr int64_t kTaskWeights = 1 << 16;

void for_each_row(int64_t rows, int64_t columns, ThreadPool* pool, const std::function<void(int64_t)>& body) {
  const int64_t step = std::max<int64_t>(1, kTaskWeights / std::max<int64_t>(1, columns));
  const auto task = [&](int64_t index) {
    for (int64_t row = index * step; row < std::min(rows, (index + 1) * step); ++row) body(row);
  };
  const int64_t tasks = (rows + step - 1) / step;
  if (pool != nullptr) return pool->run(tasks, task);
  for (int64_t index = 0; index < tasks; ++index) task(index);
}

// No block holds more; squares of smaller weights stay finite in the sums of every encoder.
constexpr float kLargestInBlock = 0x1p40f;

// The first value that is not finite or larger than `largest`, or `n`.
int64_t first_bad(const float* values, int64_t n, float largest) {
  return std::find_if(values, values + n, [&](float v) { return !(std::fabs(v) <= largest); }) - values;
}

void check_importance(const Codec& codec, const float* importance, int64_t columns,
                      const std::string& where) {
  for (int64_t j = 0; importance != nullptr && j < columns; ++j) {
    if (std::isfinite(importance[j]) && importance[j] >= 0) continue;
    throw Error(ErrorKind::numerical, where,
                str("importance of column ", j, " is ", importance[j],
                    ", expected a finite value that is not negative, to encode ", codec.name),
                "measure the importance again");
  }
}

}  // namespace

std::span<const Codec> codecs() noexcept { return kCodecs; }

const Codec* find_codec(std::string_view name) noexcept {
  const auto found =
      std::find_if(std::begin(kCodecs), std::end(kCodecs), [&](const Codec& c) { return c.name == name; });
  return found == std::end(kCodecs) ? nullptr : found;
}

const Codec* find_codec(uint32_t ggml_type) noexcept {
  const auto found = std::find_if(std::begin(kCodecs), std::end(kCodecs),
                                  [&](const Codec& c) { return c.ggml_type == ggml_type; });
  return found == std::end(kCodecs) ? nullptr : found;
}

void encode_rows(const Codec& codec, const float* x, int64_t rows, int64_t columns,
                 const EncodeRowsOptions& options, uint8_t* out, const std::string& where) {
  if (columns % codec.block != 0) {
    throw Error(ErrorKind::invalid_argument, where,
                str(codec.name, " needs rows of a multiple of ", codec.block, " weights, found ", columns),
                "choose another type for this tensor");
  }
  const EncodeRow encode = options.anchored ? codec.anchored : codec.encode;
  GRAMIAN_CHECK(encode != nullptr, codec.name, " has no anchored encoder");
  if (codec.needs_importance && !options.anchored && options.importance == nullptr) {
    throw Error(ErrorKind::invalid_argument, where, str(codec.name, " needs an importance matrix"),
                "measure one with gramian imatrix");
  }
  check_importance(codec, options.importance, columns, where);
  const int64_t row_bytes = codec.row_bytes(columns);
  for_each_row(rows, columns, options.pool, [&](int64_t row) {
    const float* weights = x + row * columns;
    uint8_t* blocks = out + row * row_bytes;
    const auto refuse_from = [&](int64_t bad) {
      if (bad == columns) return;
      throw Error(
          ErrorKind::numerical, where,
          str("weight [", row, ", ", bad, "] is ", weights[bad], ", which ", codec.name, " cannot hold"),
          "check the source model, or choose a type with more range for this tensor");
    };
    constexpr float kLargest = std::numeric_limits<float>::max();
    refuse_from(first_bad(weights, columns, codec.block > 1 ? kLargestInBlock : kLargest));
    encode(options.level, weights, columns, options.importance, blocks);
    // What was stored decides: an infinite scale shows in every value of its block.
    thread_local std::vector<float> decoded;
    decoded.resize(static_cast<size_t>(columns));
    codec.decode(blocks, columns, decoded.data());
    refuse_from(first_bad(decoded.data(), columns, kLargest));
  });
}

void decode_rows(const Codec& codec, const uint8_t* in, int64_t rows, int64_t columns, ThreadPool* pool,
                 float* out) {
  GRAMIAN_CHECK(columns % codec.block == 0, codec.name, " rows of ", columns);
  for_each_row(rows, columns, pool, [&](int64_t row) {
    codec.decode(in + row * codec.row_bytes(columns), columns, out + row * columns);
  });
}

}  // namespace gramian
