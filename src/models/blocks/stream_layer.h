// A decoder layer around several residual streams. What goes from layer to layer is [tokens, count · hidden], and behind it,
// where a row is long enough for an indexer to leave keys out, a column for each pool of keys: 1 for a token that leaves the
// pool out, so that a later layer can take that choice over.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/blocks/layer.h"
#include "models/blocks/ngram_embedding.h"
#include "models/blocks/residual_streams.h"

namespace gramian {

// The names of the readers in front of mixer and MLP, and of their norms; no norm where empty.
struct StreamNames {
  std::string attention, mlp;
  std::string attention_norm = "";
  std::string mlp_norm = "";
};

class StreamLayer final : public DecoderLayer {
 public:
  // `ngrams` may be null.
  StreamLayer(const Weights& weights, const std::string& prefix, const StreamSpec& spec,
              const StreamNames& names, const NormSpec& norm, std::unique_ptr<Mixer> mixer,
              std::unique_ptr<Mlp> mlp, std::unique_ptr<NgramEmbedding> ngrams);
  Task<at::Tensor> forward(at::Tensor hidden, const BatchContext& batch) override;
  std::unique_ptr<MixerState> make_state(int64_t tokens_max) const override;

 private:
  StreamSpec spec_;
  std::unique_ptr<StreamReader> attention_reader_, mlp_reader_;
  Norm attention_norm_, mlp_norm_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Mlp> mlp_;
  std::unique_ptr<NgramEmbedding> ngrams_;
};

}  // namespace gramian
