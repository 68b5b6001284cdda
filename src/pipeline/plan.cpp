#include "pipeline/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace gramian {
namespace {

DType weight_type(const Checkpoint& checkpoint, const Linear& linear) {
  const StoredTensor& weight = checkpoint.tensor(linear.tensor_name());
  return weight.encoding == nullptr ? weight.dtype : DType::bf16;
}

// `linear` as the options, its rule and the format have it.
PlannedModule plan_module(Linear linear, const LinearFormat& format, const PlanOptions& options,
                          const std::map<std::string, const Codec*>& mixed, DType dtype) {
  PlannedModule module;
  const bool head = linear.name == kHeadName;
  module.linear = std::move(linear);
  module.format = head ? &format.head_format() : &format;
  module.dtype = dtype;
  const ModuleRule* rule = rule_of(options.rules, module.linear.name);
  if (rule != nullptr) {
    module.rule = rule->written;
    if (rule->exclude) {
      module.quantize = false;
      module.skip_reason = "the rule " + quote_name(rule->written);
      return module;
    }
  }
  const ModuleSettings settings = settings_of(options, format, module.linear.name, rule);
  module.solve = head ? format.settle_head(settings.solve, dtype) : format.settle(settings.solve, dtype);
  const auto own = mixed.find(module.linear.tensor_name());
  if (own != mixed.end() && (rule == nullptr || !rule->patch.type)) module.solve.grid.codec = own->second;
  const Codec* asked = module.solve.grid.codec;
  module.solve.grid = module.format->fitted(module.solve.grid, module.linear.in_features);
  module.fell_back = module.solve.grid.codec != asked;
  module.fallback = settings.fallback;
  module.skip_reason =
      module.format->unfit_reason(module.linear.out_features, module.linear.in_features, module.solve.grid);
  module.quantize = module.skip_reason.empty();
  return module;
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
    for (const PlannedModule& module : layer) linears.insert(module.linear.name + std::string(kWeight));
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
      for (const PlannedTensor& part : module.format->parts(shape, module.solve.grid))
        total += 8 * bytes_of(part);
    }
  }
  return total;
}

ModuleSettings settings_of(const PlanOptions& options, const LinearFormat& format, const std::string& module,
                           const ModuleRule* rule) {
  ModuleSettings settings = options.settings;
  const bool head = module == kHeadName;
  const bool fixed = head && &format.head_format() != &format;
  if (head && (rule == nullptr || fixed)) {
    SettingsPatch defaults;
    defaults.bits = 8;
    defaults.group_size = fixed ? -1 : 32;
    defaults.symmetric = true;
    defaults.static_groups = false;
    defaults.order = ColumnOrder::natural;
    defaults.mse = 2.4;
    settings = patched(settings, defaults);
  }
  if (rule != nullptr) settings = patched(settings, rule->patch);
  if (head && options.head) settings = patched(settings, options.head->settings);
  return settings;
}

QuantizationFields QuantizePlan::fields(const Checkpoint& source) const {
  QuantizationFields fields;
  fields.solve = solve;
  fields.skipped = skipped();
  fields.plain = plain_matrices(source);
  for (const auto& layer : layers) {
    for (const PlannedModule& module : layer) {
      if (!module.quantize) continue;
      if (module.linear.name == kHeadName) {
        fields.head = module.solve;
        continue;
      }
      if (same_stored(module.solve, solve)) {
        fields.usual.push_back(module.linear.name);
        continue;
      }
      auto own = std::find_if(fields.own.begin(), fields.own.end(),
                              [&](const OwnSettings& some) { return same_stored(some.solve, module.solve); });
      if (own == fields.own.end()) own = fields.own.insert(own, {module.solve, {}});
      own->modules.push_back(module.linear.name);
    }
  }
  return fields;
}

QuantizePlan make_plan(const Model& model, const LinearFormat& format, const SolveOptions& solve,
                       bool skip_unfit) {
  return make_plan(model, format,
                   {.settings = {.solve = solve, .fallback = {}}, .rules = {}, .skip_unfit = skip_unfit});
}

QuantizePlan make_plan(const Model& model, const LinearFormat& format, const PlanOptions& options) {
  return make_plan(subject_of(model), format, options);
}

QuantizePlan make_plan(const Subject& subject, const LinearFormat& format, const PlanOptions& options) {
  const Checkpoint& checkpoint = *subject.checkpoint;
  QuantizePlan plan;
  plan.format = &format;
  plan.solve = format.settle(options.settings.solve, DType::bf16);
  // Tensors that quantized modules replace, and those that others still read: a stack may be both.
  std::set<std::string> replaced, needed;
  std::vector<std::vector<Linear>> surveyed = subject.layers;
  Problems problems;
  std::vector<std::string> ignored;
  std::optional<Linear> head;
  if (options.head) head = subject.head;
  check_settings(checkpoint.folder().string(), surveyed, head, format, options, false, problems, ignored);
  problems.refuse();
  if (head) {
    const ModuleRule* rule = rule_of(options.rules, head->name);
    if (rule == nullptr || !rule->exclude) {
      plan.has_head = true;
      plan.untied = subject.tied;
      surveyed.push_back({*head});
    }
  }
  std::map<std::string, const Codec*> mixed;
  if (options.type_mix != nullptr) {
    std::vector<std::string> names;
    for (const auto& linears : surveyed) {
      for (const Linear& linear : linears) names.push_back(linear.tensor_name());
    }
    mixed = gguf::mixed_types(*options.type_mix, names, checkpoint.config());
  }
  for (auto& linears : surveyed) {
    auto& layer = plan.layers.emplace_back();
    for (Linear& linear : linears) {
      const DType dtype = weight_type(checkpoint, linear);
      PlannedModule& module =
          layer.emplace_back(plan_module(std::move(linear), format, options, mixed, dtype));
      // The embedding stays where the head was it.
      const bool stays = !module.quantize || (plan.untied && module.linear.name == kHeadName);
      std::set<std::string>& sources = stays ? needed : replaced;
      sources.insert(module.linear.tensor_name());
      if (module.linear.has_bias) sources.insert(module.linear.bias_name());
      if (!module.quantize) continue;
      for (PlannedTensor& part : module.format->parts(module.shape(), module.solve.grid)) {
        part.name = module.linear.name + "." + part.name;
        plan.tensors.push_back(std::move(part));
      }
    }
  }
  if (plan.quantized_weights() == 0) {
    throw Error(
        ErrorKind::unsupported, checkpoint.folder().string(),
        str("no linear layer is left to quantize in the format ", format.name(), ": no linear layer fits"),
        "choose another --format");
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
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
