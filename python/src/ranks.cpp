#include "ranks.h"

namespace gramian::python {

GroupRanks::GroupRanks(py::object group)
    : group_(std::move(group)),
      rank_(group_.attr("rank").cast<int>()),
      size_(group_.attr("size").cast<int>()) {}

GroupRanks::~GroupRanks() {
  const py::gil_scoped_acquire locked;
  group_ = py::object();
}

template <class Work>
void GroupRanks::call(const Work& work) const {
  const py::gil_scoped_acquire locked;
  try {
    work();
  } catch (const py::error_already_set& error) {
    const std::string text = error.what();
    throw Error(
        ErrorKind::io, str("rank ", rank_, " of ", size_),
        "another rank does not answer: " + text.substr(0, text.find('\n')),
        "see what it said; the same command goes on after the last finished layer, with any number of ranks");
  }
}

void GroupRanks::sum(const at::Tensor& values) {
  call([&] { group_.attr("sum")(values); });
}

void GroupRanks::broadcast(const at::Tensor& values, int from) {
  call([&] { group_.attr("broadcast")(values, from); });
}

}  // namespace gramian::python
