#include "base/parallel.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace gramian {
namespace {

// A decoded token is hundreds of short products: waking a thread for each would take longer than some of them. Longer than this nobody
// waits awake, since on a busy machine that takes time from whoever works.
constexpr std::chrono::microseconds kAwake{50};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Looks for `ready` for a short while; returns whether it came.
template <class Ready>
bool comes_soon(const Ready& ready) {
  const auto end = std::chrono::steady_clock::now() + kAwake;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace

struct ThreadPool::State {
  std::mutex turn;  // one run() at a time
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable finished;
  // Under `mutex`, but read outside it by those that joined while they are in.
  const std::function<void(int64_t)>* task = nullptr;  // none: nothing to join
  int64_t count = 0;
  int asleep = 0;
  std::exception_ptr error;
  bool stop = false;

  std::atomic<uint64_t> runs = 0;  // changes with every run() and at the end
  std::atomic<int64_t> next = 0;
  std::atomic<int> joined = 0;  // workers that may be in a task; up under `mutex` only
  std::atomic<bool> failed = false;
  std::vector<std::thread> workers;

  // Takes tasks until none is left.
  void drain(const std::function<void(int64_t)>& work, int64_t all) {
    for (int64_t index = next++; index < all; index = next++) {
      if (failed) continue;
      try {
        work(index);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        failed = true;
      }
    }
  }

  void work() {
    uint64_t seen = 0;
    for (;;) {
      comes_soon([&] { return runs != seen; });
      std::unique_lock lock(mutex);
      ++asleep;
      wake.wait(lock, [&] { return runs != seen; });
      --asleep;
      seen = runs;
      if (stop) return;
      if (task == nullptr) continue;
      ++joined;
      const auto* current = task;
      const int64_t all = count;
      lock.unlock();
      drain(*current, all);
      if (--joined == 0) {
        const std::lock_guard again(mutex);  // so that the notice cannot fall between a look and a sleep
        finished.notify_all();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  for (int i = 1; i < threads; ++i) state_->workers.emplace_back([state = state_.get()] { state->work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    ++state_->runs;
  }
  state_->wake.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::threads() const noexcept { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(int64_t count, const std::function<void(int64_t)>& task) {
  if (count <= 0) return;
  const std::lock_guard turn(state_->turn);
  State& state = *state_;
  bool asleep = false;
  {
    const std::lock_guard lock(state.mutex);
    state.count = count;
    state.next = 0;
    state.failed = false;
    state.error = nullptr;
    if (count > 1) {
      state.task = &task;
      ++state.runs;
      asleep = state.asleep > 0;
    }
  }
  if (asleep) state.wake.notify_all();
  state.drain(task, count);
  {
    const std::lock_guard lock(state.mutex);
    state.task = nullptr;  // nobody joins any more
  }
  if (!comes_soon([&] { return state.joined == 0; })) {
    std::unique_lock lock(state.mutex);
    state.finished.wait(lock, [&] { return state.joined == 0; });
  }
  std::exception_ptr error;
  {
    const std::lock_guard lock(state.mutex);
    error = std::exchange(state.error, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace gramian
