#include "formats/bit_stream.h"

#include "base/error.h"
#include "tensor/ops.h"

namespace gramian {

at::Tensor pack_bits(const at::Tensor& codes, int bits, int offset) {
  const at::Tensor source = codes.contiguous();
  const int64_t rows = source.size(0), count = source.size(1), words = words_of(count, bits);
  const at::Tensor result = tensor::empty({rows, words}, at::kInt);
  const auto* code = source.const_data_ptr<int8_t>();
  auto* word = result.mutable_data_ptr<int32_t>();
  for (int64_t row = 0; row < rows; ++row) {
    uint64_t waiting = 0;
    int held = 0;
    for (int64_t i = 0; i < count; ++i, ++code) {
      const int stored = *code + offset;
      GRAMIAN_CHECK(stored >= 0 && stored < 1 << bits, "a code does not fit its bits");
      waiting |= static_cast<uint64_t>(stored) << held;
      held += bits;
      if (held < 32) continue;
      *word++ = static_cast<int32_t>(static_cast<uint32_t>(waiting));
      waiting >>= 32;
      held -= 32;
    }
    if (held > 0) *word++ = static_cast<int32_t>(static_cast<uint32_t>(waiting));
  }
  return result;
}

at::Tensor unpack_bits(const at::Tensor& words, int64_t count, int bits, int offset, int shift) {
  const at::Tensor source = words.contiguous();
  const int64_t rows = source.size(0);
  GRAMIAN_CHECK(source.size(1) == words_of(count, bits), "packed codes of another length");
  const at::Tensor result = tensor::empty({rows, count}, at::kChar);
  const auto* word = source.const_data_ptr<int32_t>();
  auto* code = result.mutable_data_ptr<int8_t>();
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t row = 0; row < rows; ++row) {
    uint64_t waiting = 0;
    int held = 0;
    for (int64_t i = 0; i < count; ++i, ++code) {
      if (held < bits) {
        waiting |= static_cast<uint64_t>(static_cast<uint32_t>(*word++)) << held;
        held += 32;
      }
      *code = static_cast<int8_t>(static_cast<int>((static_cast<uint32_t>(waiting) + shift) & mask) - offset);
      waiting >>= bits;
      held -= bits;
    }
  }
  return result;
}

}  // namespace gramian
