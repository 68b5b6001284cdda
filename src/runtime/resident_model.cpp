#include "runtime/resident_model.h"

#include "base/error.h"
#include "formats/qqq_config.h"
#include "runtime/qqq_linear.h"

namespace gramian {
namespace {

at::Tensor tensor_if(bool needed, const Checkpoint& checkpoint, const std::string& name) {
  return needed || checkpoint.contains(name) ? checkpoint.tensor(name).to_tensor() : at::Tensor();
}

// Opens a module whose packed codes are in the checkpoint.
std::shared_ptr<const LinearOp> open_qqq(const Checkpoint& checkpoint, const Linear& linear,
                                         int64_t group_size, const std::shared_ptr<ThreadPool>& pool) {
  if (!checkpoint.contains(linear.name + ".B")) return nullptr;
  const StoredTensor& codes = checkpoint.tensor(linear.name + ".B");
  const qqq::Packed packed{codes.to_tensor(), checkpoint.tensor(linear.name + ".s_channel").to_tensor(),
                           tensor_if(false, checkpoint, linear.name + ".s_group"),
                           tensor_if(linear.has_bias, checkpoint, linear.name + ".bias")};
  if (const std::string fault = qqq::group_fault(packed, linear.in_features, group_size, linear.name);
      !fault.empty())
    throw Error(ErrorKind::corrupt_data, "", fault, "restore config.json or the weights from their source");
  auto op = std::make_shared<QqqLinear>(
      qqq::unpack(packed, linear.out_features, linear.in_features, linear.name), pool);
  codes.file->drop(codes.bytes);
  return op;
}

Model open_model(const std::filesystem::path& folder, const OpenOptions& options,
                 std::shared_ptr<ThreadPool> pool) {
  auto checkpoint = std::make_shared<const Checkpoint>(folder);
  ModelOptions model_options{.dtype = parse_dtype(options.dtype),
                             .treat_as_tied = options.treat_as_tied,
                             .quantized = {},
                             .keep_experts = true};
  if (const auto group = qqq::read_group_size(checkpoint->config(), (folder / "config.json").string())) {
    model_options.quantized = [group = *group, pool = std::move(pool)](const Checkpoint& source,
                                                                       const Linear& linear) {
      return open_qqq(source, linear, group, pool);
    };
  }
  return {std::move(checkpoint), model_options};
}

}  // namespace

ResidentModel::ResidentModel(const std::filesystem::path& folder, const OpenOptions& options,
                             std::shared_ptr<ThreadPool> pool)
    : model_(open_model(folder, options, std::move(pool))) {
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
  at::Tensor hidden = model_.embed(ids);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!states.empty()) context.states = {states[i].get()};
    hidden = run(layers_[i]->forward(std::move(hidden), context), &multiplications_);
  }
  return hidden;
}

}  // namespace gramian
