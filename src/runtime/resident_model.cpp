#include "runtime/resident_model.h"

#include <algorithm>

#include "base/error.h"
#include "formats/qqq_format.h"
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

// The weight of a packed head; undefined where it is plain. Logits are made in fp32 of a head in the model's type.
at::Tensor decode_head(const ModuleFormat& stored, const Checkpoint& checkpoint, const Linear& head,
                       at::ScalarType dtype) {
  const LinearFormat& format = *stored.format;
  if (!format.holds(checkpoint, head.name)) return {};
  const LinearShape shape{head.out_features, head.in_features, false};
  const PackedParts parts = load_parts(format, checkpoint, head.name, shape, stored.grid);
  at::Tensor weight =
      format.unpack(parts, shape.out_features, shape.in_features, stored.grid, head.name).weight.to(dtype);
  drop_parts(format, checkpoint, head.name, shape, stored.grid);
  return weight;
}

Model open_model(const std::filesystem::path& folder, const OpenOptions& options,
                 std::shared_ptr<ThreadPool> pool) {
  auto checkpoint = std::make_shared<const Checkpoint>(folder);
  ModelOptions model_options{.dtype = parse_dtype(options.dtype),
                             .treat_as_tied = options.treat_as_tied,
                             .quantized = {},
                             .keep_experts = true};
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
      return decode_head(stored.of(head.name), source, head, dtype);
    };
  }
  return {std::move(checkpoint), model_options};
}

}  // namespace

ResidentModel::ResidentModel(const std::filesystem::path& folder, const OpenOptions& options,
                             std::shared_ptr<ThreadPool> pool)
    : pool_(std::move(pool)), model_(open_model(folder, options, pool_)) {
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
