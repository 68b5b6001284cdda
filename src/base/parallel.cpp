#include "base/parallel.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace gramian {

struct ThreadPool::State {
  std::mutex turn;  // one run() at a time
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable finished;
  const std::function<void(int64_t)>* task = nullptr;
  int64_t count = 0;
  int64_t next = 0;
  int64_t open = 0;  // tasks taken or still to be taken
  std::exception_ptr error;
  bool stop = false;
  std::vector<std::thread> workers;

  // Takes tasks until none is left; `lock` is held on entry and on return.
  void drain(std::unique_lock<std::mutex>& lock) {
    while (next < count) {
      const int64_t index = next++;
      const auto* current = task;
      const bool skip = error != nullptr;
      lock.unlock();
      std::exception_ptr thrown;
      if (!skip) {
        try {
          (*current)(index);
        } catch (...) {
          thrown = std::current_exception();
        }
      }
      lock.lock();
      if (thrown && !error) error = thrown;
      if (--open == 0) finished.notify_all();
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  for (int i = 1; i < threads; ++i) {
    state_->workers.emplace_back([state = state_.get()] {
      std::unique_lock lock(state->mutex);
      while (true) {
        state->wake.wait(lock, [&] { return state->stop || state->next < state->count; });
        if (state->stop) return;
        state->drain(lock);
      }
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::threads() const noexcept { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(int64_t count, const std::function<void(int64_t)>& task) {
  if (count <= 0) return;
  const std::lock_guard turn(state_->turn);
  std::exception_ptr error;
  {
    std::unique_lock lock(state_->mutex);
    state_->task = &task;
    state_->count = count;
    state_->next = 0;
    state_->open = count;
    state_->error = nullptr;
    if (count > 1) state_->wake.notify_all();
    state_->drain(lock);
    state_->finished.wait(lock, [&] { return state_->open == 0; });
    state_->count = state_->next = 0;
    error = std::exchange(state_->error, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace gramian
