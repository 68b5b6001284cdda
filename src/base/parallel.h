// A pool of threads for independent tasks. Results never depend on the number of threads: a task writes only its own
// part, and whoever sums over tasks does so in task order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace gramian {

class ThreadPool {
 public:
  // `threads` >= 1, the calling thread included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept;
  // Runs task(0) ... task(count - 1), each once, and returns when all are done. The first exception is rethrown here.
  // May be called from several threads (calls take turns); not from inside a task.
  void run(int64_t count, const std::function<void(int64_t)>& task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gramian
