#include "models/blocks/delta_memory.h"

#include "base/error.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// Of one run of rows: the last inputs of each convolution, and the heads' states. Undefined before the first token.
class DeltaState final : public MixerState {
 public:
  std::array<at::Tensor, 3> tails;  // [rows, kernel - 1, channels]
  at::Tensor heads;                 // f32 [rows, heads, key_dim, value_dim]

  int64_t bytes() const override {
    size_t bytes = heads.defined() ? heads.nbytes() : 0;
    for (const at::Tensor& tail : tails) bytes += tail.defined() ? tail.nbytes() : 0;
    return static_cast<int64_t>(bytes);
  }
};

}  // namespace

at::Tensor causal_conv_silu(const at::Tensor& x, const at::Tensor& weight, at::Tensor& tail, int64_t step) {
  const int64_t length = x.size(1), kernel = weight.size(1), before = (kernel - 1) * step;
  if (!tail.defined()) tail = tensor::zeros({x.size(0), before, x.size(2)}, x.scalar_type());
  const at::Tensor joined = tensor::cat({tail, x}, 1);
  tail = joined.narrow(1, length, before).clone();
  at::Tensor sum = joined.narrow(1, 0, length).to(at::kFloat).mul(weight.select(1, 0));
  for (int64_t j = 1; j < kernel; ++j)
    sum.addcmul_(joined.narrow(1, j * step, length).to(at::kFloat), weight.select(1, j));
  return tensor::silu(sum).to(x.scalar_type());
}

DeltaMemory::DeltaMemory(const Weights& weights, const std::string& prefix, const DeltaSizes& sizes)
    : sizes_(sizes) {
  const std::array<int64_t, 3> channels{sizes.keys(), sizes.keys(), sizes.values()};
  const std::string joined = prefix + "conv1d.weight";
  at::Tensor all;
  if (weights.checkpoint().contains(joined))
    all = weights.stored(joined, {2 * sizes.keys() + sizes.values(), 1, sizes.kernel});
  const std::array<const char*, 3> names{"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
  int64_t first = 0;
  for (size_t i = 0; i < 3; ++i) {
    at::Tensor own = all;
    if (!weights.checkpoint().contains(joined))
      own = weights.stored(prefix + names[i], {channels[i], 1, sizes.kernel});
    if (all.defined()) own = all.narrow(0, first, channels[i]);
    first += channels[i];
    if (own.defined()) conv_[i] = own.squeeze(1).to(weights.dtype()).to(at::kFloat);
  }
}

at::Tensor DeltaMemory::mix(const Tokens& tokens, const BatchContext& batch) const {
  at::Tensor out = tensor::empty({batch.tokens, sizes_.heads, sizes_.value_dim}, at::kFloat);
  for (size_t i = 0; i < batch.runs.size(); ++i) {
    const RowRun& run = batch.runs[i];
    DeltaState alone;
    DeltaState* state = &alone;
    if (!batch.states.empty()) state = dynamic_cast<DeltaState*>(batch.states[i]);
    GRAMIAN_CHECK(state != nullptr, "another layer's state");
    if (!state->heads.defined())
      state->heads = tensor::zeros({run.rows, sizes_.heads, sizes_.key_dim, sizes_.value_dim}, at::kFloat);
    const auto rows = [&](const at::Tensor& x) {
      std::vector<int64_t> shape{run.rows, run.length};
      shape.insert(shape.end(), x.sizes().begin() + 1, x.sizes().end());
      return x.narrow(0, run.begin, run.rows * run.length).view(shape);
    };
    const auto convolved = [&](const at::Tensor& x, size_t which, int64_t heads) {
      return causal_conv_silu(rows(x), conv_[which], state->tails[which])
          .view({run.rows, run.length, heads, x.size(-1) / heads});
    };
    const at::Tensor mixed = delta_rule({.q = convolved(tokens.q, 0, sizes_.key_heads),
                                         .k = convolved(tokens.k, 1, sizes_.key_heads),
                                         .v = convolved(tokens.v, 2, sizes_.heads),
                                         .g = rows(tokens.g),
                                         .beta = rows(tokens.beta)},
                                        state->heads);
    rows(out).copy_(mixed);
  }
  return out;
}

std::unique_ptr<MixerState> DeltaMemory::make_state() const { return std::make_unique<DeltaState>(); }

}  // namespace gramian
