#include "models/blocks/stream_layer.h"

#include "tensor/ops.h"

namespace gramian {
namespace {

// Of a layer with an n-gram embedding.
class StreamState final : public MixerState {
 public:
  explicit StreamState(std::unique_ptr<MixerState> of_mixer) : mixer(std::move(of_mixer)) {}
  std::unique_ptr<MixerState> mixer;
  NgramState ngrams;
  int64_t bytes() const override { return mixer->bytes() + ngrams.bytes(); }
  void keep_as(at::ScalarType type) override { mixer->keep_as(type); }
};

// Leaves the mixer's states in the batch and gives the others.
std::vector<NgramState*> take_ngram_states(BatchContext& batch) {
  std::vector<NgramState*> found;
  for (MixerState*& held : batch.states) {
    auto* state = dynamic_cast<StreamState*>(held);
    GRAMIAN_CHECK(state != nullptr, "another layer's state");
    found.push_back(&state->ngrams);
    held = state->mixer.get();
  }
  return found;
}

}  // namespace

StreamLayer::StreamLayer(const Weights& weights, const std::string& prefix, const StreamSpec& spec,
                         const StreamNames& names, const NormSpec& norm, std::unique_ptr<Mixer> mixer,
                         std::unique_ptr<Mlp> mlp, std::unique_ptr<NgramEmbedding> ngrams)
    : spec_(spec),
      attention_reader_(load_stream_reader(weights, prefix + names.attention, spec)),
      mlp_reader_(load_stream_reader(weights, prefix + names.mlp, spec)),
      mixer_(std::move(mixer)),
      mlp_(std::move(mlp)),
      ngrams_(std::move(ngrams)) {
  const auto load = [&](const std::string& name) {
    return load_norm(weights, name.empty() ? "" : prefix + name, {spec.hidden}, norm);
  };
  attention_norm_ = load(names.attention_norm);
  mlp_norm_ = load(names.mlp_norm);
}

Task<at::Tensor> StreamLayer::forward(at::Tensor hidden, const BatchContext& batch) {
  const int64_t pools = hidden.size(1) - spec_.width();
  at::Tensor streams = hidden, closed;
  if (pools > 0) {
    closed = hidden.narrow(1, spec_.width(), pools).ne(0);
    streams = hidden.narrow(1, 0, spec_.width()).contiguous();
  }
  hidden.reset();
  BatchContext own = batch;
  own.closed = &closed;
  if (ngrams_) {
    const std::vector<NgramState*> states = take_ngram_states(own);
    streams = streams.add(ngrams_->added(streams, own, states));
  }
  StreamPart part = attention_reader_->read(streams);
  at::Tensor input = attention_norm_(part.input);
  part.input.reset();
  at::Tensor mixed = co_await mixer_->forward(std::move(input), own);
  if (batch.tap) batch.tap("mixer_out", mixed);
  streams = written(streams, part, mixed);
  mixed.reset();
  part = mlp_reader_->read(streams);
  input = mlp_norm_(part.input);
  part.input.reset();
  at::Tensor mlp_out = co_await mlp_->forward(std::move(input));
  if (batch.tap) batch.tap("mlp_out", mlp_out);
  streams = written(streams, part, mlp_out);
  if (closed.defined()) streams = tensor::cat({streams, closed.to(streams.scalar_type())}, 1);
  co_return streams;
}

std::unique_ptr<MixerState> StreamLayer::make_state(int64_t tokens_max) const {
  std::unique_ptr<MixerState> mixer = mixer_->make_state(tokens_max);
  if (!ngrams_) return mixer;
  return std::make_unique<StreamState>(std::move(mixer));
}

}  // namespace gramian
