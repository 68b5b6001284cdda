// A foreign model's forward as a LayerForward: Python takes the batches through a layer and feeds the sums, this side says of
// which modules, has them solved, and hands the weights back.
#pragma once

#include <memory>
#include <vector>

#include "bindings.h"
#include "pipeline/calibrator.h"
#include "pipeline/layer_forward.h"
#include "pipeline/subject.h"

namespace gramian::python {

struct HookOptions {
  Sequential sequential = Sequential::subset;
  Statistic statistic = Statistic::hessian;
  AccumulationSettings accumulation;
  Log* log = nullptr;
};

// `driver` (gramian/hooks/driver.py) has
//   tokens, batches                      numbers
//   collect(layer, sums) -> int          runs all batches, as far as needed, and adds the input of each module that is a key of
//                                        `sums` to its accumulator; returns the additions made
//   collect_head(sums) -> int            the same of the head
//   replace(layer, name, weight)         the module goes on with `weight` [out, in]
//   finish(layer)                        runs all batches to the layer's end
//   hidden(), set_hidden(tensors)        what the next layer gets, one tensor a batch
class HookForward final : public LayerForward {
 public:
  HookForward(const py::object& driver, const Subject& subject, decltype(SumOptions::share) share,
              const HookOptions& options);
  ~HookForward() override;
  int64_t tokens() const override { return tokens_; }
  int64_t batches() const override { return batches_; }
  Counts counts() const override { return counts_; }
  void run_layer(size_t index, const Solver& solve, bool with_statistics) override;
  void run_head(Linear& head, const Solver& solve) override;
  std::string save(const std::filesystem::path& folder) override;
  bool load(const std::filesystem::path& folder, const std::string& digest) override;
  int64_t hidden_bytes() const override;

 private:
  struct Sum;
  using Pauses = std::vector<std::vector<Linear*>>;
  std::vector<Sum> make_sums(const Pauses& pauses) const;
  // `collect`: the driver's method, called with the sums by their leaders.
  void fill(std::vector<Sum>& sums, const std::function<py::object(const py::dict&)>& collect);
  static void solve_each(std::vector<Sum>& sums, const Solver& solve);
  std::vector<at::Tensor> hidden() const;

  py::object driver_;
  const Subject& subject_;
  decltype(SumOptions::share) share_;
  HookOptions options_;
  int64_t tokens_ = 0, batches_ = 0;
  Counts counts_;
};

}  // namespace gramian::python
