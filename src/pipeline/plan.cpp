#include "pipeline/plan.h"

#include <algorithm>
#include <set>

#include "formats/qqq.h"

namespace gramian {
namespace {

// The tensors of one packed module.
std::vector<PlannedTensor> packed_tensors(const Linear& linear, int64_t group_size) {
  const int64_t n = linear.out_features, k = linear.in_features;
  std::vector<PlannedTensor> tensors{{linear.name + ".B", DType::i32, {k / 16, 2 * n}},
                                     {linear.name + ".s_channel", DType::f32, {1, n}}};
  if (group_size > 0 && group_size != k) {
    tensors.push_back({linear.name + ".s_group", DType::f16, {k / group_size, n}});
  }
  if (linear.has_bias) tensors.push_back({linear.name + ".bias", DType::f16, {n}});
  return tensors;
}

}  // namespace

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

int64_t QuantizePlan::quantized_weights() const {
  int64_t weights = 0;
  for (const auto& layer : layers) {
    for (const PlannedModule& module : layer) {
      if (module.quantize) weights += module.linear.in_features * module.linear.out_features;
    }
  }
  return weights;
}

void refuse_unfit(const std::string& where, const std::vector<std::vector<Linear>>& layers,
                  int64_t group_size) {
  std::string all;
  int64_t count = 0;
  for (const auto& linears : layers) {
    for (const Linear& linear : linears) {
      const std::string reason = qqq::unfit_reason(linear.out_features, linear.in_features, group_size);
      if (reason.empty()) continue;
      ++count;
      all += str("\n  ", linear.name, " [", linear.out_features, " x ", linear.in_features, "]: ", reason);
    }
  }
  if (count == 0) return;
  throw Error(ErrorKind::unsupported, where, str(count, " linear layer(s) do not fit QQQ's tiles:", all),
              "\npass --skip-unfit to leave them unquantized, or choose another --group-size");
}

QuantizePlan make_plan(const Model& model, int64_t group_size, bool skip_unfit) {
  QuantizePlan plan;
  // Tensors that quantized modules replace, and those that others still read: a stack may be both.
  std::set<std::string> replaced, needed;
  std::vector<std::vector<Linear>> surveyed = model.survey();
  if (!skip_unfit) refuse_unfit(model.checkpoint().folder().string(), surveyed, group_size);
  for (auto& linears : surveyed) {
    auto& layer = plan.layers.emplace_back();
    for (Linear& linear : linears) {
      const std::string reason = qqq::unfit_reason(linear.out_features, linear.in_features, group_size);
      std::set<std::string>& sources = reason.empty() ? replaced : needed;
      sources.insert(linear.tensor_name());
      if (linear.has_bias) sources.insert(linear.bias_name());
      if (reason.empty()) {
        for (PlannedTensor& tensor : packed_tensors(linear, group_size))
          plan.tensors.push_back(std::move(tensor));
      }
      layer.push_back({std::move(linear), reason.empty(), reason});
    }
  }
  if (plan.quantized_weights() == 0) {
    throw Error(ErrorKind::unsupported, model.checkpoint().folder().string(),
                "no linear layer fits QQQ's tiles", "QQQ cannot quantize this model");
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
