#include "runtime/resident_model.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "formats/json.h"
#include "formats/lora_adapter.h"
#include "formats/qqq_format.h"
#include "runtime/adapted_linear.h"
#include "runtime/dequantized_linear.h"
#include "runtime/qqq_linear.h"

namespace gramian {
namespace {

// Opens a module whose packed codes are in the checkpoint.
std::shared_ptr<const LinearOp> open_packed(const ModuleFormat& stored, const Checkpoint& checkpoint,
                                            const Linear& linear, at::ScalarType dtype,
                                            const QqqRuntime& runtime) {
  const LinearFormat& format = *stored.format;
  if (!format.holds(checkpoint, linear.name)) return nullptr;
  const int64_t n = linear.out_features, k = linear.in_features;
  const LinearShape shape{n, k, linear.has_bias};
  const PackedParts parts = load_parts(format, checkpoint, linear.name, shape, stored.grid);
  if (linear.has_bias && !parts.contains("bias"))
    throw Error(ErrorKind::corrupt_data, linear.name + ".bias", "is missing", "restore it from the source");
  std::shared_ptr<const LinearOp> op;
  if (&format == &qqq_format()) {
    const qqq::Packed packed = qqq_parts(parts);
    if (const std::string fault = qqq::group_fault(packed, k, stored.grid.group_size, linear.name);
        !fault.empty())
      throw Error(ErrorKind::corrupt_data, "", fault, "restore config.json or the weights from their source");
    op = std::make_shared<QqqLinear>(qqq::read_codes(packed, n, k, linear.name), runtime, linear.name);
  } else {
    const DecodedLinear decoded = format.unpack(parts, n, k, stored.grid, linear.name);
    op = std::make_shared<DequantizedLinear>(decoded, stored.grid.activation_bits == 8, dtype);
  }
  drop_parts(format, checkpoint, linear.name, shape, stored.grid);
  return op;
}

// A packed head; int8 codes stay as they are, others are decoded to the model's type. Without weight where it is plain.
OutputHead open_packed_head(const ModuleFormat& stored, const Checkpoint& checkpoint, const Linear& head,
                            at::ScalarType dtype) {
  const LinearFormat& format = *stored.format;
  if (!format.holds(checkpoint, head.name)) return {};
  const LinearShape shape{head.out_features, head.in_features, false};
  const PackedParts parts = load_parts(format, checkpoint, head.name, shape, stored.grid);
  const auto codes = parts.find("weight"), scales = parts.find("weight_scale");
  if (codes != parts.end() && codes->second.scalar_type() == at::kChar &&
      codes->second.sizes() == at::IntArrayRef({head.out_features, head.in_features}) &&
      scales != parts.end() && scales->second.numel() == head.out_features)
    return {codes->second, scales->second.to(at::kFloat).reshape({head.out_features}).contiguous()};
  at::Tensor weight =
      format.unpack(parts, shape.out_features, shape.in_features, stored.grid, head.name).weight.to(dtype);
  drop_parts(format, checkpoint, head.name, shape, stored.grid);
  return {weight};
}

// Throws corrupt_data for a part of the adapter that fits no linear layer of the model.
LinearDecorator adapting(const std::shared_ptr<const LoraAdapter>& adapter) {
  return [adapter](const Linear& linear) -> std::shared_ptr<const LinearOp> {
    const auto found = adapter->modules.find(linear.name);
    if (found == adapter->modules.end()) return linear.op;
    const LowRank& low_rank = found->second;
    if (low_rank.a.size(1) != linear.in_features || low_rank.b.size(0) != linear.out_features)
      throw Error(ErrorKind::corrupt_data, adapter->weights.string(),
                  str(linear.name, " is [", linear.out_features, ", ", linear.in_features, "], its adapter [",
                      low_rank.b.size(0), ", ", low_rank.a.size(1), "]"),
                  "use an adapter that was trained for this model");
    return std::make_shared<AdaptedLinear>(linear.op, low_rank);
  };
}

void refuse_foreign_parts(const LoraAdapter& adapter, const Model& model) {
  std::map<std::string, LowRank> left = adapter.modules;
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    for (const auto& group : model.module_names(i)) {
      for (const std::string& name : group) left.erase(name);
    }
  }
  if (left.empty()) return;
  std::vector<std::string> names;
  for (const auto& [name, part] : left) names.push_back(name);
  throw Error(ErrorKind::corrupt_data, adapter.weights.string(),
              str("adapts ", quote_names(names, 3), ", no linear layer of this model"),
              "use an adapter that was trained for this model");
}

Model open_model(const std::filesystem::path& folder, const OpenOptions& options,
                 std::shared_ptr<ThreadPool> pool) {
  auto checkpoint = std::make_shared<const Checkpoint>(folder);
  ModelOptions model_options{.dtype = parse_dtype(options.dtype),
                             .treat_as_tied = options.treat_as_tied,
                             .quantized = {},
                             .keep_experts = true};
  std::shared_ptr<const LoraAdapter> adapter;
  if (!options.adapter.empty()) {
    adapter = std::make_shared<const LoraAdapter>(read_lora_adapter(options.adapter));
    model_options.decorate = adapting(adapter);
  }
  const std::string config = (folder / "config.json").string();
  if (const auto stored = stored_format(checkpoint->config(), config)) {
    const auto& tensors = checkpoint->tensors();
    if (std::none_of(tensors.begin(), tensors.end(),
                     [&](const auto& tensor) { return stored->format->module_of(tensor.first); }))
      throw Error(ErrorKind::corrupt_data, config,
                  str("quantization_config says ", stored->format->name(),
                      ", but no tensor is of a quantized module"),
                  "restore config.json or the weights from their source");
    model_options.quantized = [stored = *stored, dtype = model_options.dtype,
                               runtime = QqqRuntime{std::move(pool)}](const Checkpoint& source,
                                                                      const Linear& linear) {
      return open_packed(stored.of(linear.name), source, linear, dtype, runtime);
    };
    model_options.quantized_head = [stored = *stored, dtype = model_options.dtype](const Checkpoint& source,
                                                                                   const Linear& head) {
      return open_packed_head(stored.of(head.name), source, head, dtype);
    };
  }
  Model model(std::move(checkpoint), model_options);
  if (adapter != nullptr) refuse_foreign_parts(*adapter, model);
  return model;
}

}  // namespace

ResidentModel::ResidentModel(const std::filesystem::path& folder, const OpenOptions& options,
                             std::shared_ptr<ThreadPool> pool)
    : pool_(std::move(pool)), model_(open_model(folder, options, pool_)) {
  if (options.head_only) return;
  for (int64_t i = 0; i < model_.spec().layers(); ++i) layers_.push_back(model_.load_layer(i));
}

at::Tensor ResidentModel::states(const std::vector<TokenRow>& rows) {
  BatchContext context = model_.context(rows);
  return model_.final_norm(forward(model_.pack_rows(rows), context, {}));
}

LayerStates ResidentModel::make_states(int64_t tokens_max) const {
  LayerStates states;
  for (const auto& layer : layers_) states.push_back(layer->make_state(tokens_max));
  return states;
}

at::Tensor ResidentModel::forward(const at::Tensor& ids, BatchContext& context, const LayerStates& states) {
  GRAMIAN_CHECK(!layers_.empty(), "a model opened for its head alone");
  context.ids = ids;
  context.pool = pool_.get();
  at::Tensor hidden = model_.embed(ids);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!states.empty()) context.states = {states[i].get()};
    hidden = run(layers_[i]->forward(std::move(hidden), context), &multiplications_);
  }
  return hidden;
}

}  // namespace gramian
