// Codes of 2, 3, 4 or 8 bits as one little-endian stream of bits in words of 32: code i stands in bits i·bits and up.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gramian {

// codes int8 [rows, count], signed (-2^(bits-1) and up), stored as code + offset - which must fit the bits - along each row: i32
// [rows, ⌈count·bits/32⌉]; bits behind the last code are 0. Throws internal for a code that does not fit.
at::Tensor pack_bits(const at::Tensor& codes, int bits, int offset);
// The inverse: int8 [rows, count], (stored + shift) mod 2^bits - offset. words: i32 [rows, ⌈count·bits/32⌉].
at::Tensor unpack_bits(const at::Tensor& words, int64_t count, int bits, int offset, int shift = 0);
inline int64_t words_of(int64_t count, int bits) { return (count * bits + 31) / 32; }

}  // namespace gramian
