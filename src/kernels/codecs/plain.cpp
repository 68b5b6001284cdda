#include "kernels/codecs/plain.h"

#include <cstring>

#include "kernels/float16.h"

namespace gramian {
namespace {

template <class T>
void encode(const float* x, int64_t n, uint8_t* out) noexcept {
  for (int64_t i = 0; i < n; ++i) {
    const typename T::Stored stored = T::narrow(x[i]);
    std::memcpy(out + i * static_cast<int64_t>(sizeof(stored)), &stored, sizeof(stored));
  }
}

template <class T>
void decode(const uint8_t* in, int64_t n, float* out) noexcept {
  for (int64_t i = 0; i < n; ++i) {
    typename T::Stored stored;
    std::memcpy(&stored, in + i * static_cast<int64_t>(sizeof(stored)), sizeof(stored));
    out[i] = T::widen(stored);
  }
}

}  // namespace

void encode_f32(CpuLevel, const float* x, int64_t n, const float*, uint8_t* out) noexcept {
  encode<F32>(x, n, out);
}
void decode_f32(const uint8_t* in, int64_t n, float* out) noexcept { decode<F32>(in, n, out); }
void encode_f16(CpuLevel, const float* x, int64_t n, const float*, uint8_t* out) noexcept {
  encode<F16>(x, n, out);
}
void decode_f16(const uint8_t* in, int64_t n, float* out) noexcept { decode<F16>(in, n, out); }
void encode_bf16(CpuLevel, const float* x, int64_t n, const float*, uint8_t* out) noexcept {
  encode<BF16>(x, n, out);
}
void decode_bf16(const uint8_t* in, int64_t n, float* out) noexcept { decode<BF16>(in, n, out); }

}  // namespace gramian
