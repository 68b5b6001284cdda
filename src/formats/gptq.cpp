#include "formats/gptq.h"

#include "base/error.h"
#include "formats/bit_stream.h"
#include "formats/part_check.h"
#include "tensor/ops.h"

namespace gramian::gptq {
namespace {

int midpoint(int bits) { return 1 << (bits - 1); }

at::Tensor finite_half(const at::Tensor& tensor, const std::string& name) {
  const at::Tensor half = tensor.to(at::kHalf);
  if (!half.isfinite().all().item<bool>())
    throw Error(ErrorKind::numerical, name, "leaves fp16", "GPTQ stores it in fp16: use another format");
  return half;
}

// Version 1's zeros minus nothing: fields plus one, by whole words where fields do not cross words.
at::Tensor undo_version_1(const at::Tensor& qzeros, int bits) {
  if (bits == 3) return qzeros;
  int64_t ones = 0;
  for (int bit = 0; bit < 32; bit += bits) ones |= int64_t{1} << bit;
  return qzeros.to(at::kLong).add(ones).bitwise_and(0xffffffff).to(at::kInt);
}

}  // namespace

std::string unfit_reason(int64_t n, int64_t k) {
  if (n % 32 == 0 && k % 32 == 0) return "";
  return str(n, " outputs and ", k, " inputs, GPTQ's words need multiples of 32");
}

Packed pack(const QuantizedLinear& module, const at::Tensor& bias, Version version, const std::string& name) {
  const int64_t n = module.codes.size(0), k = module.codes.size(1), groups = module.scale.size(1);
  GRAMIAN_CHECK(unfit_reason(n, k).empty(), "a shape that GPTQ has no words for");
  const int bits = module.bits, offset = midpoint(bits);
  const at::Tensor zero = module.zero.defined() ? module.zero : tensor::zeros({n, groups}, at::kChar);
  if (version == Version::v1 && zero.eq(-offset).any().item<bool>()) {
    throw Error(ErrorKind::unsupported, name, "has a zero point of 0, which the format gptq cannot store",
                "use --format gptq_v2, or --sym");
  }
  Packed packed;
  packed.qweight = pack_bits(module.codes, bits, offset).t().contiguous();
  packed.qzeros = pack_bits(zero.t().contiguous(), bits, version == Version::v1 ? offset - 1 : offset);
  packed.scales = finite_half(module.scale.t().contiguous(), name + ".scales");
  packed.g_idx = module.group_index.defined() ? module.group_index
                                              : tensor::arange(k, at::kInt).div_(module.group_size, "trunc");
  if (bias.defined()) packed.bias = finite_half(bias, name + ".bias");
  return packed;
}

QuantizedLinear unpack(const Packed& packed, int bits, Version version, int64_t n, int64_t k,
                       const std::string& name) {
  if (const std::string reason = unfit_reason(n, k); !reason.empty()) refuse_part(name, reason);
  expect_part(packed.qweight, name + ".qweight", {at::kInt}, {words_of(k, bits), n});
  const std::string scales = name + ".scales";
  if (!packed.scales.defined() || packed.scales.dim() != 2 || packed.scales.size(0) < 1)
    refuse_part(scales, "is missing or not a matrix");
  const int64_t groups = packed.scales.size(0);
  expect_part(packed.scales, scales, {at::kHalf, at::kBFloat16, at::kFloat}, {groups, n});
  expect_part(packed.qzeros, name + ".qzeros", {at::kInt}, {groups, words_of(n, bits)});
  expect_part(packed.g_idx, name + ".g_idx", {at::kInt}, {k});
  QuantizedLinear module;
  module.bits = bits;
  module.scale = packed.scales.to(at::kFloat).t().contiguous();
  expect_finite(module.scale, scales);
  const at::Tensor indices = packed.g_idx.contiguous();
  const auto* index = indices.const_data_ptr<int32_t>();
  // The least size that the natural order of groups could have: it is stored nowhere in the tensors.
  int64_t size = 1;
  while (size < k && index[size] == 0) ++size;
  module.group_size = size;
  bool natural = true;
  for (int64_t i = 0; i < k; ++i) {
    if (index[i] < 0 || index[i] >= groups)
      refuse_part(name + ".g_idx", str("entry ", i, " is ", index[i], ", of ", groups, " groups"));
    natural &= index[i] == i / size;
  }
  if (!natural) {
    module.group_index = packed.g_idx.clone();
    module.group_size = (k + groups - 1) / groups;
  }
  const int offset = midpoint(bits);
  module.codes = unpack_bits(packed.qweight.t().contiguous(), k, bits, offset);
  const bool first = version == Version::v1;
  module.zero = unpack_bits(first ? undo_version_1(packed.qzeros, bits) : packed.qzeros, n, bits, offset,
                            first && bits == 3 ? 1 : 0)
                    .t()
                    .contiguous();
  if (module.zero.eq(0).all().item<bool>()) module.zero.reset();
  return module;
}

}  // namespace gramian::gptq
