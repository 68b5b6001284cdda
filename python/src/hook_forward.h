// A foreign model's forward as a LayerForward: Python takes the batches through a layer and feeds the sums, this side says of
// which modules, has them solved, and hands the weights back.
#pragma once

#include <memory>
#include <optional>
#include <span>
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
  // Bound of the process's resident memory, which the sums that are alive at once have to keep.
  std::optional<int64_t> memory_bytes = std::nullopt;
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
//
// Where the sums of a step do not fit into memory together, its batches run once for each part of them: nothing is replaced between the
// parts, so that the bytes are the same.
class HookForward final : public LayerForward {
 public:
  // Throws unsupported where memory does not hold even one sum, what solves its modules, and the weights that are replaced in a layer.
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
  // Takes them, as many at a time as fit, and has them solved. `collect`: the driver's method, called with sums by their leaders.
  void take(std::vector<Sum> sums, const std::function<py::object(const py::dict&)>& collect,
            const Solver& solve);
  void fill(std::span<Sum> sums, const std::function<py::object(const py::dict&)>& collect);
  static void solve_each(std::span<Sum> sums, const Solver& solve);
  int64_t sum_bytes(const Sum& sum) const;
  // Beside the sums: the factor, and the widest module while it is solved (docs/memory.md).
  int64_t solving_bytes(const Sum& sum) const;
  // Of the solved weights, which wait for the step's end and then stand in the model beside the original ones.
  int64_t replaced_bytes(const Sum& sum) const;
  void refuse_small_memory() const;
  std::vector<at::Tensor> hidden() const;

  py::object driver_;
  const Subject& subject_;
  decltype(SumOptions::share) share_;
  HookOptions options_;
  int64_t tokens_ = 0, batches_ = 0;
  Counts counts_;
};

}  // namespace gramian::python
