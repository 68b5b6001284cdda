// The forward of a layer as a C++20 coroutine that pauses wherever a linear layer needs its weights.
//
//   Task<at::Tensor> Attention::forward(at::Tensor x, const BatchContext& batch) {
//     std::vector<at::Tensor> qkv = co_await linears(std::move(x), q, k, v);   // pause: one input, three readers
//     ...
//     co_return out;
//   }
//
// An Execution drives one batch: advance() runs to the next pause and hands it out; whoever drives looks at the input,
// may exchange the modules' weights, fills the outputs (multiply()) and calls advance() again. Tasks nest; a loop resumes
// the innermost one (g++ 12 has trouble with symmetric transfer). tools/check.py enforces where co_await may stand.
#pragma once

#include <ATen/core/Tensor.h>

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/linear.h"

namespace gramian {

class ExpertBank;  // models/experts.h

// Which experts each token goes to.
struct Routing {
  at::Tensor experts;  // i64 [tokens, k]
  at::Tensor weights;  // [tokens, k], of the experts' outputs; undefined: all 1
  // [tokens, all experts]: what an expert reads is the token's row times this; undefined: all 1.
  at::Tensor input_scale = {};
};

// One input and who reads it: linear layers, or the experts of a mixture.
struct Pause {
  at::Tensor input;  // [tokens, in]
  std::vector<Linear*> modules;
  ExpertBank* experts = nullptr;  // set: no modules; one output, the weighted sum over each token's experts
  Routing routing;
  std::vector<at::Tensor> outputs;  // one per module, filled before the task goes on
};

// outputs = input · weightᵀ for every module, or what the experts make of the input; the input is released. Returns the
// number of products made.
int64_t multiply(Pause& pause);

class Execution;

namespace task_detail {

struct PromiseBase {
  Execution* execution = nullptr;
  std::exception_ptr error;

  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<>) const noexcept;
    void await_resume() const noexcept {}
    Execution* execution;
  };
  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {execution}; }
  void unhandled_exception() noexcept { error = std::current_exception(); }
};

}  // namespace task_detail

// A coroutine that yields a T. Starts when it is awaited or given to an Execution; owns its frame.
template <class T>
class [[nodiscard]] Task {
 public:
  struct promise_type : task_detail::PromiseBase {
    std::optional<T> value;
    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    void return_value(T result) { value = std::move(result); }
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> parent);
  T await_resume() { return take(); }

 private:
  friend class Execution;
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  T take() {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return std::move(*handle_.promise().value);
  }
  std::coroutine_handle<promise_type> handle_;
};

// One batch on its way through a task. Not thread-safe; may move between threads while paused.
class Execution {
 public:
  explicit Execution(Task<at::Tensor> root);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // Runs to the next pause, or to the end (nullptr). The previous pause's outputs must be filled. Rethrows what the
  // task threw.
  Pause* advance();
  // The task's value, once advance() returned nullptr.
  at::Tensor result();

 private:
  template <class T>
  friend class Task;
  friend struct task_detail::PromiseBase::FinalAwaiter;
  friend class PauseAwaiter;
  Task<at::Tensor> root_;
  std::vector<std::coroutine_handle<>> stack_;  // innermost task last
  Pause* pause_ = nullptr;
};

inline void task_detail::PromiseBase::FinalAwaiter::await_suspend(std::coroutine_handle<>) const noexcept {
  execution->stack_.pop_back();
}

template <class T>
template <class Promise>
void Task<T>::await_suspend(std::coroutine_handle<Promise> parent) {
  Execution* execution = parent.promise().execution;
  handle_.promise().execution = execution;
  execution->stack_.push_back(handle_);
}

// Pauses the task that awaits it.
class PauseAwaiter {
 public:
  explicit PauseAwaiter(Pause pause) : pause_(std::move(pause)) {}
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> task) {
    task.promise().execution->pause_ = &pause_;
  }

 protected:
  std::vector<at::Tensor> outputs(size_t count) {
    GRAMIAN_CHECK(pause_.outputs.size() == count, "a task went on without its products");
    return std::move(pause_.outputs);
  }
  Pause pause_;
};

class LinearsAwaiter : public PauseAwaiter {
 public:
  using PauseAwaiter::PauseAwaiter;
  std::vector<at::Tensor> await_resume() { return outputs(pause_.modules.size()); }
};

class ExpertsAwaiter : public PauseAwaiter {
 public:
  using PauseAwaiter::PauseAwaiter;
  at::Tensor await_resume() { return std::move(outputs(1)[0]); }
};

// co_await linears(x, a, b...) -> {x·aᵀ, x·bᵀ, ...}. This and experts() are the only places where a forward pauses.
template <class... Modules>
LinearsAwaiter linears(at::Tensor input, Modules&... modules) {
  Pause pause;
  pause.input = std::move(input);
  pause.modules = {&modules...};
  return LinearsAwaiter(std::move(pause));
}

// The same for modules that are known at run time only.
inline LinearsAwaiter linears(at::Tensor input, std::vector<Linear>& modules) {
  Pause pause;
  pause.input = std::move(input);
  for (Linear& module : modules) pause.modules.push_back(&module);
  return LinearsAwaiter(std::move(pause));
}

// co_await experts(x, routing, bank) -> Σ over each token's experts of weight · expert(x), [tokens, hidden].
inline ExpertsAwaiter experts(at::Tensor input, Routing routing, ExpertBank& bank) {
  Pause pause;
  pause.input = std::move(input);
  pause.routing = std::move(routing);
  pause.experts = &bank;
  return ExpertsAwaiter(std::move(pause));
}

}  // namespace gramian
