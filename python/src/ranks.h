// Ranks over a process group that Python has made.
#pragma once

#include "bindings.h"
#include "pipeline/ranks.h"

namespace gramian::python {

// `group` (gramian/distributed.py) has rank, size, sum(tensor) and broadcast(tensor, source), both in place.
class GroupRanks final : public Ranks {
 public:
  explicit GroupRanks(py::object group);
  ~GroupRanks() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void sum(const at::Tensor& values) override;
  void broadcast(const at::Tensor& values, int from) override;

 private:
  template <class Work>
  void call(const Work& work) const;
  py::object group_;
  int rank_ = 0, size_ = 1;
};

}  // namespace gramian::python
