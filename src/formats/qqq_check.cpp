#include "formats/qqq_check.h"

#include <array>

#include "base/error.h"
#include "formats/qqq.h"
#include "tensor/ops.h"

namespace gramian::qqq {
namespace {

constexpr std::array<const char*, 4> kParts{".B", ".s_channel", ".s_group", ".bias"};

at::Tensor stored(const Checkpoint& checkpoint, const std::string& name) {
  if (!checkpoint.contains(name)) return {};
  const StoredTensor& tensor = checkpoint.tensor(name);
  // A damaged BOOL tensor has no values; as bytes it is of a wrong type like any other.
  return tensor.dtype == DType::boolean ? tensor::empty(tensor.shape, at::kBool) : tensor.to_tensor();
}

// "NAME: 3 values WHAT, the first at 17" for the marked entries of `bad`, in the order in which they are stored.
void report(const at::Tensor& bad, const std::string& name, const std::string& what,
            std::vector<std::string>& problems) {
  const auto count = bad.sum().item<int64_t>();
  if (count == 0) return;
  problems.push_back(str(name, ": ", count, " value(s) ", what, ", the first at position ",
                         bad.flatten().to(at::kByte).argmax().item<int64_t>()));
}

// Values that are wrong whatever the codes are. A channel scale found wrong is replaced, so that the rest can be decoded.
void check_values(Packed& packed, const std::string& name, std::vector<std::string>& problems) {
  const auto is_float = [](const at::Tensor& tensor) {
    return tensor.defined() && (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kHalf ||
                                tensor.scalar_type() == at::kBFloat16);
  };
  if (is_float(packed.s_channel)) {
    const at::Tensor bad = packed.s_channel.isfinite().logical_not().logical_or(packed.s_channel.lt(0));
    report(bad, name + ".s_channel", "negative or not finite", problems);
    packed.s_channel = packed.s_channel.masked_fill(bad, 1.0);
  }
  if (is_float(packed.s_group)) report(packed.s_group.lt(0), name + ".s_group", "negative", problems);
  if (is_float(packed.bias))
    report(packed.bias.isfinite().logical_not(), name + ".bias", "not finite", problems);
}

void check_decoded(const Decoded& decoded, const std::string& name, std::vector<std::string>& problems) {
  const at::Tensor zero = decoded.s_channel.eq(0);
  if (!zero.any().item<bool>()) return;
  const at::Tensor lost = zero.logical_and(decoded.values.ne(0).any(1));
  if (const auto rows = lost.sum().item<int64_t>(); rows > 0) {
    problems.push_back(str(name, ".s_channel: 0 for ", rows,
                           " row(s) whose codes are not, the first is output ",
                           lost.to(at::kByte).argmax().item<int64_t>()));
  }
}

void decode(const Packed& packed, int64_t n, int64_t k, const std::string& name, ModuleCheck& check) {
  try {
    const Decoded decoded = unpack(packed, n, k, name);
    check.saturated = decoded.saturated;
    check_decoded(decoded, name, check.problems);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt_data) throw;
    check.problems.emplace_back(error.what());
  }
}

}  // namespace

ModuleCheck check_module(const Checkpoint& checkpoint, const std::string& name, int64_t n, int64_t k,
                         bool has_bias, int64_t group_size) {
  ModuleCheck check;
  Packed packed;
  at::Tensor* const tensors[] = {&packed.B, &packed.s_channel, &packed.s_group, &packed.bias};
  for (size_t part = 0; part < kParts.size(); ++part)
    *tensors[part] = stored(checkpoint, name + kParts[part]);
  check.problems = layout_faults(packed, n, k, name);
  const bool decodes = check.problems.empty();
  if (has_bias && !packed.bias.defined()) {
    check.problems.push_back(str(name, ".bias: expected Half [", n, "], found nothing"));
  }
  if (const std::string fault = group_fault(packed, k, group_size, name); !fault.empty())
    check.problems.push_back(fault);
  check_values(packed, name, check.problems);
  if (decodes) decode(packed, n, k, name, check);
  for (const char* part : kParts) {
    if (!checkpoint.contains(name + part)) continue;
    const StoredTensor& stored = checkpoint.tensor(name + part);
    stored.drop();
  }
  return check;
}

}  // namespace gramian::qqq
