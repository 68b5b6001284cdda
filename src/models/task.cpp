#include "models/task.h"

#include "models/experts.h"

namespace gramian {

int64_t multiply(Pause& pause) {
  if (pause.experts != nullptr) {
    int64_t products = 0;
    pause.outputs = {run_experts(pause.input, pause.routing, *pause.experts, products)};
    pause.input.reset();
    pause.routing = {};
    return products;
  }
  std::vector<const LinearOp*> ops;
  ops.reserve(pause.modules.size());
  for (const Linear* module : pause.modules) ops.push_back(module->op.get());
  pause.outputs = ops.front()->forward_together(ops, pause.input);
  pause.input.reset();
  return static_cast<int64_t>(pause.modules.size());
}

Execution::Execution(Task<at::Tensor> root) : root_(std::move(root)) {
  root_.handle_.promise().execution = this;
  stack_.push_back(root_.handle_);
}

Pause* Execution::advance() {
  pause_ = nullptr;
  while (!stack_.empty() && pause_ == nullptr) stack_.back().resume();
  if (pause_ == nullptr && root_.handle_.promise().error)
    std::rethrow_exception(root_.handle_.promise().error);
  return pause_;
}

at::Tensor Execution::result() {
  GRAMIAN_CHECK(stack_.empty(), "the task has not ended");
  return root_.take();
}

}  // namespace gramian
