#include "pipeline/plan.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace gramian {
namespace {

DType weight_type(const Checkpoint& checkpoint, const Linear& linear) {
  const StoredTensor& weight = checkpoint.tensor(linear.tensor_name());
  return weight.encoding == nullptr ? weight.dtype : DType::bf16;
}

}  // namespace

uint64_t bytes_of(const PlannedTensor& tensor) {
  uint64_t bytes = dtype_bytes(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

const PlannedModule* QuantizePlan::find(size_t layer, const std::string& name) const {
  const auto named = [&](const PlannedModule& module) { return module.linear.name == name; };
  const auto found = std::find_if(layers[layer].begin(), layers[layer].end(), named);
  return found == layers[layer].end() ? nullptr : &*found;
}

const PlannedModule* QuantizePlan::find(const std::string& name) const {
  const PlannedModule* found = nullptr;
  for (size_t layer = 0; layer < layers.size() && found == nullptr; ++layer) found = find(layer, name);
  return found;
}

std::vector<std::string> QuantizePlan::skipped() const {
  std::vector<std::string> names;
  for (const auto& layer : layers) {
    for (const PlannedModule& module : layer) {
      if (!module.quantize) names.push_back(module.linear.name);
    }
  }
  return names;
}

std::vector<std::string> QuantizePlan::plain_matrices(const Checkpoint& source) const {
  constexpr std::string_view kWeight = ".weight";
  std::set<std::string> linears;
  for (const auto& layer : layers) {
    for (const PlannedModule& module : layer) linears.insert(module.linear.tensor_name());
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : source.tensors()) {
    if (name.ends_with(kWeight) && tensor.shape.size() == 2 && !linears.contains(name))
      names.push_back(name.substr(0, name.size() - kWeight.size()));
  }
  return names;
}

int64_t QuantizePlan::quantized_weights() const {
  int64_t weights = 0;
  for (const auto& layer : layers) {
    for (const PlannedModule& module : layer) {
      if (module.quantize) weights += module.linear.in_features * module.linear.out_features;
    }
  }
  return weights;
}

uint64_t QuantizePlan::packed_bits() const {
  uint64_t total = 0;
  for (const auto& layer : layers) {
    for (const PlannedModule& module : layer) {
      if (!module.quantize) continue;
      LinearShape shape = module.shape();
      shape.has_bias = false;
      for (const PlannedTensor& part : format->parts(shape, module.solve.grid)) total += 8 * bytes_of(part);
    }
  }
  return total;
}

void refuse_unfit(const std::string& where, const std::vector<std::vector<Linear>>& layers,
                  const LinearFormat& format, const GridOptions& grid) {
  std::string all;
  int64_t count = 0;
  for (const auto& linears : layers) {
    for (const Linear& linear : linears) {
      const std::string reason = format.unfit_reason(linear.out_features, linear.in_features, grid);
      if (reason.empty()) continue;
      ++count;
      all += str("\n  ", linear.name, " [", linear.out_features, " x ", linear.in_features, "]: ", reason);
    }
  }
  if (count == 0) return;
  throw Error(ErrorKind::unsupported, where,
              str(count, " linear layer(s) do not fit the format ", format.name(), ":", all),
              "\npass --skip-unfit to leave them unquantized, or choose another --group-size");
}

QuantizePlan make_plan(const Model& model, const LinearFormat& format, const SolveOptions& solve,
                       bool skip_unfit) {
  QuantizePlan plan;
  plan.format = &format;
  plan.solve = format.settle(solve, DType::bf16);
  // Tensors that quantized modules replace, and those that others still read: a stack may be both.
  std::set<std::string> replaced, needed;
  std::vector<std::vector<Linear>> surveyed = model.survey();
  if (!skip_unfit) refuse_unfit(model.checkpoint().folder().string(), surveyed, format, plan.solve.grid);
  for (auto& linears : surveyed) {
    auto& layer = plan.layers.emplace_back();
    for (Linear& linear : linears) {
      const std::string reason =
          format.unfit_reason(linear.out_features, linear.in_features, plan.solve.grid);
      std::set<std::string>& sources = reason.empty() ? replaced : needed;
      sources.insert(linear.tensor_name());
      if (linear.has_bias) sources.insert(linear.bias_name());
      PlannedModule& module = layer.emplace_back();
      module.quantize = reason.empty();
      module.skip_reason = reason;
      module.dtype = weight_type(model.checkpoint(), linear);
      module.solve = format.settle(solve, module.dtype);
      module.linear = std::move(linear);
      if (!module.quantize) continue;
      for (PlannedTensor& part : format.parts(module.shape(), module.solve.grid)) {
        part.name = module.linear.name + "." + part.name;
        plan.tensors.push_back(std::move(part));
      }
    }
  }
  if (plan.quantized_weights() == 0) {
    throw Error(ErrorKind::unsupported, model.checkpoint().folder().string(),
                str("no linear layer fits the format ", format.name()), "choose another --format");
  }
  for (const auto& [name, tensor] : model.checkpoint().tensors()) {
    if (replaced.contains(name) && !needed.contains(name)) continue;
    const bool encoded = tensor.encoding != nullptr;
    (encoded ? plan.decoded : plan.copied).push_back(name);
    plan.tensors.push_back({name, encoded ? DType::bf16 : tensor.dtype, tensor.shape});
  }
  std::sort(plan.tensors.begin(), plan.tensors.end(),
            [](const PlannedTensor& a, const PlannedTensor& b) { return a.name < b.name; });
  return plan;
}

}  // namespace gramian
