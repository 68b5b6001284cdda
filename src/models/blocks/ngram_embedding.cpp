#include "models/blocks/ngram_embedding.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "models/blocks/delta_memory.h"
#include "tensor/ops.h"

namespace gramian {

int64_t NgramState::bytes() const {
  return static_cast<int64_t>((ids.defined() ? ids.nbytes() : 0) + (tail.defined() ? tail.nbytes() : 0));
}

NgramEmbedding::NgramEmbedding(const Weights& weights, const std::string& prefix, const NgramSpec& spec)
    : spec_(spec), dtype_(weights.dtype()) {
  const StreamSpec& streams = spec.streams;
  key_ = weights.tensor(prefix + "key_proj.weight", {streams.width(), spec.dim});
  value_ = weights.tensor(prefix + "value_proj.weight", {streams.hidden, spec.dim});
  key_norm_ = load_stream_norm(weights, prefix + "norm_key", streams);
  query_norm_ = load_stream_norm(weights, prefix + "norm_query", streams);
  conv_norm_ = load_stream_norm(weights, prefix + "norm_conv", streams);
  const at::Tensor conv = weights.tensor(prefix + "conv1d.weight", {streams.width(), 1, spec.kernel});
  const std::string table = prefix + "ple_embedding.";
  multipliers_ = weights.integers(table + "layer_multipliers", {spec.order});
  offsets_ = weights.integers(table + "ngram_heads_offsets", {spec.heads()});
  sizes_ = weights.integers(table + "ngram_heads_vocab_sizes", {spec.heads()});
  for (int64_t s = 0; s < spec.shards; ++s) {
    const std::string name = str(table, "ngram_embedding.shard_", s, ".weight");
    // Only the file says how many rows a shard has.
    int64_t rows = 0;
    if (weights.checkpoint().contains(name) && !weights.checkpoint().tensor(name).shape.empty())
      rows = weights.checkpoint().tensor(name).shape[0];
    table_.push_back(weights.stored(name, {rows, spec.dim / spec.heads()}));
    ends_.push_back(rows + (ends_.empty() ? 0 : ends_.back()));
  }
  if (weights.is_survey()) return;
  conv_ = conv.squeeze(1).to(at::kFloat);
  check_table(weights, table);
}

void NgramEmbedding::check_table(const Weights& weights, const std::string& prefix) const {
  const auto *offset = offsets_.const_data_ptr<int64_t>(), *size = sizes_.const_data_ptr<int64_t>();
  for (int64_t h = 0; h < spec_.heads(); ++h) {
    if (size[h] > 0 && offset[h] >= 0 && offset[h] <= ends_.back() && size[h] <= ends_.back() - offset[h])
      continue;
    throw Error(ErrorKind::corrupt_data, weights.checkpoint().folder().string(),
                str("head ", h, " of '", prefix, "ngram_embedding' has rows ", offset[h], " to ", offset[h],
                    " + ", size[h], ", the table has ", ends_.back()),
                "fetch the file again");
  }
}

at::Tensor NgramEmbedding::added(const at::Tensor& streams, const BatchContext& batch,
                                 const std::vector<NgramState*>& states) const {
  const int64_t hidden = spec_.streams.hidden, count = spec_.streams.count;
  GRAMIAN_CHECK(batch.ids.defined() && batch.ids.size(0) == batch.tokens, "a batch without its ids");
  std::vector<NgramState> alone(batch.runs.size());
  const auto state = [&](size_t run) -> NgramState& { return states.empty() ? alone[run] : *states[run]; };
  at::Tensor rows = tensor::empty({batch.tokens, spec_.heads()}, at::kLong);
  for (size_t i = 0; i < batch.runs.size(); ++i) {
    const RowRun& run = batch.runs[i];
    const int64_t tokens = run.rows * run.length;
    const at::Tensor ids = batch.ids.narrow(0, run.begin, tokens).view({run.rows, run.length});
    rows.narrow(0, run.begin, tokens).copy_(hashed(ids, state(i)).view({tokens, spec_.heads()}));
  }
  const at::Tensor found = look_up(rows);
  const auto split = [&](const at::Tensor& x) { return x.view({batch.tokens, count, hidden}); };
  const at::Tensor key = key_norm_(split(tensor::linear(found, key_, {})));
  at::Tensor gate = key.mul(query_norm_(split(streams))).sum(-1, true);
  gate.div_(std::sqrt(static_cast<double>(hidden)));
  gate = gate.abs().clamp_min_(1e-6).sqrt_().mul_(gate.sign());
  const at::Tensor value = tensor::linear(found, value_, {}).unsqueeze(1).mul(tensor::sigmoid(gate));
  const at::Tensor normed = conv_norm_(value).view(streams.sizes());
  at::Tensor out = value.reshape(streams.sizes());
  for (size_t i = 0; i < batch.runs.size(); ++i) {
    const RowRun& run = batch.runs[i];
    const auto part = [&](const at::Tensor& x) {
      return x.narrow(0, run.begin, run.rows * run.length).view({run.rows, run.length, x.size(1)});
    };
    part(out).add_(causal_conv_silu(part(normed), conv_, state(i).tail, spec_.order));
  }
  return out;
}

at::Tensor NgramEmbedding::hashed(const at::Tensor& ids, NgramState& state) const {
  const int64_t back = spec_.order - 1, length = ids.size(1);
  if (!state.ids.defined()) state.ids = tensor::zeros({ids.size(0), back}, at::kLong).add_(spec_.eos);
  const at::Tensor history = tensor::cat({state.ids, ids}, 1);
  state.ids = history.narrow(1, length, back).clone();
  at::Tensor word = ids, mixed = ids.mul(multipliers_[0]);
  std::vector<at::Tensor> rows;
  for (int64_t s = 1; s <= back; ++s) {
    const at::Tensor earlier = history.narrow(1, back - s, length);
    // Behind an eos there is nothing but eos.
    word = s == 1 ? earlier : earlier.masked_fill(word.eq(spec_.eos), spec_.eos);
    mixed = mixed.bitwise_xor(word.mul(multipliers_[s]));
    const int64_t first = (s - 1) * spec_.heads_per_order;
    rows.push_back(mixed.unsqueeze(-1)
                       .remainder(sizes_.narrow(0, first, spec_.heads_per_order))
                       .add_(offsets_.narrow(0, first, spec_.heads_per_order)));
  }
  return tensor::cat(rows, 2);
}

at::Tensor NgramEmbedding::look_up(const at::Tensor& rows) const {
  struct Wanted {
    std::vector<int64_t> rows, places;
  };
  std::map<size_t, Wanted> by_shard;
  const auto* row = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows.numel(); ++i) {
    const auto shard =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), row[i]) - ends_.begin());
    by_shard[shard].rows.push_back(row[i] - (shard == 0 ? 0 : ends_[shard - 1]));
    by_shard[shard].places.push_back(i);
  }
  at::Tensor out = tensor::empty({rows.numel(), spec_.dim / spec_.heads()}, dtype_);
  const auto index = [](const std::vector<int64_t>& values) {
    return tensor::wrap(values.data(), {static_cast<int64_t>(values.size())}, at::kLong, nullptr);
  };
  for (const auto& [shard, wanted] : by_shard)
    out.index_copy_(0, index(wanted.places), table_[shard].index_select(0, index(wanted.rows)).to(dtype_));
  return out.view({rows.size(0), spec_.dim});
}

}  // namespace gramian
