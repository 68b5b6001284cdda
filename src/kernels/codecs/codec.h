// The block formats of GGML as one table. Floats in, blocks out: a row of n weights becomes n / block consecutive blocks
// of `bytes` bytes each, little-endian. Byte layouts stand at the top of each codec's source.
//
// Encoders follow ggml 0.25.3 as a baseline x86-64 build rounds it: every operation in float32, sums in index order, no
// fused multiply-add. So their bytes equal those of llama.cpp's quantizer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/parallel.h"
#include "kernels/cpu_level.h"

namespace gramian {

// x [n], importance [n] or null -> out [n / block * bytes]. n is a multiple of the codec's block; x is finite, importance
// finite and not negative (what else is given changes codes, never the bytes that are touched). Any thread.
using EncodeRow = void (*)(CpuLevel level, const float* x, int64_t n, const float* importance,
                           uint8_t* out) noexcept;
// in [n / block * bytes] -> out [n]. Any bytes decode to something.
using DecodeRow = void (*)(const uint8_t* in, int64_t n, float* out) noexcept;

struct Codec {
  std::string_view name;  // as GGML spells it: "Q4_K"
  uint32_t ggml_type;     // the type's number in GGUF files
  int64_t block;          // weights a block
  int64_t bytes;          // bytes a block
  bool needs_importance;  // encode must not be called without
  EncodeRow encode;
  DecodeRow decode;
  // A single pass with a scale that is not searched (IQ2_XXS only, else null). Importance may be null.
  EncodeRow anchored = nullptr;

  // `n` must be a multiple of `block`.
  int64_t row_bytes(int64_t n) const noexcept { return n / block * bytes; }
};

// F32, F16 and BF16, then from the most bits to the fewest.
std::span<const Codec> codecs() noexcept;
// Null when there is none.
const Codec* find_codec(std::string_view name) noexcept;
const Codec* find_codec(uint32_t ggml_type) noexcept;

struct EncodeRowsOptions {
  const float* importance = nullptr;  // [columns], the same for every row; null for none
  bool anchored = false;              // use Codec::anchored
  CpuLevel level = CpuLevel::reference;
  ThreadPool* pool = nullptr;  // null: the calling thread; the number of threads changes no byte
};

// x [rows, columns] -> out [rows, row_bytes(columns)]. Throws invalid_argument for columns that are no multiple of the block
// and for missing importance, numerical for a weight that is not finite, importance that is negative or not finite, and a
// block whose scale leaves its type; `where` names the tensor, the message the position.
void encode_rows(const Codec& codec, const float* x, int64_t rows, int64_t columns,
                 const EncodeRowsOptions& options, uint8_t* out, const std::string& where);
// in [rows, row_bytes(columns)] -> out [rows, columns].
void decode_rows(const Codec& codec, const uint8_t* in, int64_t rows, int64_t columns, ThreadPool* pool,
                 float* out);

}  // namespace gramian
