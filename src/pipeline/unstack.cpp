#include "pipeline/unstack.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/dtype.h"

namespace gramian {
namespace {

bool is_slice(const Linear& linear, const Checkpoint& checkpoint) {
  const StoredWeight& stored = linear.stored;
  return stored.shape.size() == 3 && !stored.transposed && stored.row_step == 1 && !linear.has_bias &&
         checkpoint.tensor(stored.tensor, stored.shape).encoding == nullptr;
}

// The rows of one expert's matrix as they lie in the stack.
StoredTensor slice(const StoredTensor& stack, const Linear& linear) {
  const StoredWeight& stored = linear.stored;
  const auto row = static_cast<size_t>(linear.in_features) * dtype_bytes(stack.dtype);
  const auto first = static_cast<size_t>(stored.matrix * stored.shape[1] + stored.first_row);
  StoredTensor part = stack;
  part.shape = {linear.out_features, linear.in_features};
  part.bytes = stack.bytes.subspan(first * row, static_cast<size_t>(linear.out_features) * row);
  return part;
}

}  // namespace

void unstack(Subject& subject) {
  const Checkpoint& source = *subject.checkpoint;
  std::map<std::string, StoredTensor> tensors = source.tensors();
  std::set<std::string> stacks;
  for (auto& layer : subject.layers) {
    for (Linear& linear : layer) {
      if (!is_slice(linear, source)) continue;
      stacks.insert(linear.stored.tensor);
      tensors[linear.name + ".weight"] = slice(source.tensor(linear.stored.tensor), linear);
      linear.stored = {};
    }
  }
  if (stacks.empty()) return;
  for (const std::string& name : stacks) tensors.erase(name);
  subject.checkpoint = std::make_shared<const Checkpoint>(source.folder().string(), source.config(),
                                                          std::move(tensors), source.side_folder());
}

std::shared_ptr<const Checkpoint> unstacked(const std::shared_ptr<const Checkpoint>& checkpoint) {
  const auto& tensors = checkpoint->tensors();
  const bool stacks = std::any_of(tensors.begin(), tensors.end(), [](const auto& entry) {
    return entry.second.shape.size() == 3 && entry.first.find(".experts.") != std::string::npos;
  });
  if (!stacks) return checkpoint;
  Subject subject = subject_of(Model(checkpoint, {.treat_as_tied = true}));
  unstack(subject);
  return subject.checkpoint;
}

}  // namespace gramian
