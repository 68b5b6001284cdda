// A decoder-only language model over a checkpoint: embedding, layers one at a time, final norm, head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/blocks/gated_streams.h"
#include "models/family.h"

namespace gramian {

// The output head: [vocab, hidden] as it is stored. Of int8 codes each row has a scale, f32 [vocab].
struct OutputHead {
  at::Tensor weight;
  at::Tensor scales = {};
};

struct ModelOptions {
  at::ScalarType dtype = at::kFloat;
  // Use the embedding as head when the checkpoint has neither a head nor says that it is tied.
  bool treat_as_tied = false;
  QuantizedLinearFactory quantized = nullptr;  // may be empty
  LinearDecorator decorate = nullptr;          // may be empty
  // Opens a quantized head; without weight where the checkpoint holds a plain one.
  std::function<OutputHead(const Checkpoint& checkpoint, const Linear& head)> quantized_head = nullptr;
  bool keep_experts = false;  // for models that run again and again
  // Read nothing: what is wrong with the tensors outside the layers is written here instead of thrown. Such a model can
  // only be surveyed.
  Weights::Survey* headers = nullptr;
};

class Model {
 public:
  // Throws unsupported for an unknown family, corrupt_data for missing tensors or wrong shapes outside the layers.
  Model(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options);

  const Family& family() const noexcept { return family_; }
  const DecoderSpec& spec() const noexcept { return spec_; }
  const Checkpoint& checkpoint() const noexcept { return weights_.checkpoint(); }
  const std::shared_ptr<const Checkpoint>& shared_checkpoint() const noexcept {
    return weights_.shared_checkpoint();
  }
  at::ScalarType dtype() const noexcept { return weights_.dtype(); }

  // Whether the head is the embedding by ModelOptions::treat_as_tied alone; false when config.json says so, or a head exists.
  bool tied_on_request() const;

  // The head as a linear layer, without `op`; where it is the embedding, `stored` names that tensor.
  Linear head() const;
  bool tied() const;

  // What the names of the decoder's tensors begin with: "model.", or the prefix of a text part in a multimodal file.
  const std::string& prefix() const noexcept { return prefix_; }
  // Name of a decoder layer's modules up to their own part: "model.layers.3.".
  std::string layer_prefix(int64_t index) const;
  // Stored decoder layers that nothing runs or quantizes: beyond num_hidden_layers and the layers that config.json
  // declares for multi-token prediction.
  int64_t surplus_layers() const;
  // Full names of the linear layers of layer `index`, grouped by shared input, in the order of the forward's pauses.
  ModuleTree module_names(int64_t index) const;

  // Checks names, shapes and types of every layer's tensors from the headers alone. Returns the linear layers in the
  // order of the layers' pauses; throws corrupt_data with all problems in one message.
  std::vector<std::vector<Linear>> survey() const;
  // The same, with the problems added to `survey` instead of thrown.
  std::vector<std::vector<Linear>> survey(Weights::Survey& survey) const;

  // Rows of token ids (each non-empty, ids in the vocabulary: invalid_argument otherwise) -> packed i64 [tokens].
  at::Tensor pack_rows(const std::vector<TokenRow>& rows) const;
  BatchContext context(const std::vector<TokenRow>& rows) const;

  // ids [tokens] -> [tokens, hidden], scaled as the family does; one copy for each residual stream.
  at::Tensor embed(const at::Tensor& ids) const;
  // Materializes one layer.
  std::unique_ptr<DecoderLayer> load_layer(int64_t index) const;
  // The pages of the layer's stored tensors, or of the embedding, stop counting as resident.
  void drop_layer(int64_t index) const;
  // Has the system read the layer's stored tensors from the disk meanwhile.
  void read_ahead_layer(int64_t index) const;
  void drop_embedding() const;
  // What the last layer gives -> [tokens, hidden].
  at::Tensor final_norm(const at::Tensor& hidden) const;
  // normed [tokens, hidden] -> f32 [tokens, vocab], multiplied in f32; no more than a chunk of the head exists in another
  // type than its stored one. `pool` may be null.
  at::Tensor logits(const at::Tensor& normed, ThreadPool* pool = nullptr) const;

 private:
  // [count, hidden] of the head from row `begin` on, f32.
  at::Tensor head_rows(int64_t begin, int64_t count) const;
  void each_stored(int64_t layer, const std::function<void(const StoredTensor&)>& work) const;
  const Family& family_;
  DecoderSpec spec_;
  Weights weights_;
  std::string prefix_;
  std::string head_name_;
  at::Tensor embedding_;  // [vocab, hidden], as stored
  OutputHead head_;
  Norm final_norm_;
  std::optional<StreamGate> final_gate_;
};

// "auto", "float32", "bfloat16", "float16" -> type; auto is bf16 where the CPU multiplies it, else f32. Throws
// invalid_argument for another name.
at::ScalarType parse_dtype(const std::string& name);

// Drives `task` alone: multiplies at every pause until it ends. Adds the products made to `multiplications` if given.
at::Tensor run(Task<at::Tensor> task, int64_t* multiplications = nullptr);

}  // namespace gramian
