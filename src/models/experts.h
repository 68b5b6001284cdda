// A mixture of experts inside a layer: every token goes to a few of many small MLPs, and their outputs are added up.
//
//   at::Tensor mixed = co_await experts(std::move(x), std::move(routing), bank_);   // pause: the sum over each token's experts
//
// Each expert is a task of its own over its rows, so a driver may open, feed, solve and drop them a few at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "models/task.h"

namespace gramian {

// The feed-forward part of a layer: rows [tokens, hidden] -> same shape.
class Mlp {
 public:
  virtual ~Mlp() = default;
  virtual Task<at::Tensor> forward(at::Tensor x) = 0;
};

// One that can be one of many.
class Expert : public Mlp {
 public:
  // The linear layers it pauses at, in order; those of one entry read the same input.
  virtual std::vector<std::vector<Linear*>> pauses() = 0;
};

class ExpertBank {
 public:
  using Open = std::function<std::shared_ptr<Expert>(int64_t expert)>;
  // `open` loads one expert. `resident`: an expert that was opened stays in memory.
  ExpertBank(int64_t count, bool resident, Open open);

  int64_t count() const noexcept { return static_cast<int64_t>(kept_.size()); }
  // The expert; loaded unless it is kept. Not thread-safe.
  std::shared_ptr<Expert> open(int64_t expert);
  // From now on open() returns `solved` for this expert.
  void keep(int64_t expert, std::shared_ptr<Expert> solved) {
    kept_[static_cast<size_t>(expert)] = std::move(solved);
  }

 private:
  bool resident_;
  Open open_;
  std::vector<std::shared_ptr<Expert>> kept_;
};

// The rows of each expert, in token order.
class ExpertRows {
 public:
  // Throws numerical for an expert outside [0, experts).
  ExpertRows(const Routing& routing, int64_t experts);
  int64_t count(int64_t expert) const { return ends_[static_cast<size_t>(expert) + 1] - begin(expert); }
  // What the expert reads of x [tokens, hidden]: [count, hidden].
  at::Tensor gather(const at::Tensor& x, int64_t expert) const;
  // What it would read if every token went to it: [tokens, hidden].
  at::Tensor all(const at::Tensor& x, int64_t expert) const;
  // Its rows of what it made of all tokens: [tokens, hidden] -> [count, hidden].
  at::Tensor pick(const at::Tensor& out, int64_t expert) const;
  // sum[token] += out[row] · weight, for every row of the expert; in sum's type, as transformers adds them.
  void add(const at::Tensor& sum, const at::Tensor& out, int64_t expert) const;

 private:
  int64_t begin(int64_t expert) const { return ends_[static_cast<size_t>(expert)]; }
  at::Tensor tokens_of(int64_t expert) const { return tokens_.narrow(0, begin(expert), count(expert)); }
  std::vector<int64_t> ends_;  // [experts + 1]
  at::Tensor tokens_;          // i64 [tokens · k], sorted by expert, then token
  at::Tensor weights_;         // [tokens · k, 1], same order; undefined: all 1
  at::Tensor input_scale_;     // [tokens, experts] or undefined
};

// The sum over each token's experts, added in the order of the experts. Adds the products made to `multiplications`.
at::Tensor run_experts(const at::Tensor& x, const Routing& routing, ExpertBank& bank,
                       int64_t& multiplications);

}  // namespace gramian
