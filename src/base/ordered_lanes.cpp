#include "base/ordered_lanes.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace gramian {
namespace {

class Lanes {
 public:
  Lanes(int lanes, size_t count, const std::function<void(int, size_t)>& make)
      : ahead_(static_cast<size_t>(lanes)), done_(count, false), errors_(count), make_(make) {
    for (int lane = 0; lane < lanes; ++lane) threads_.emplace_back([this, lane] { run(lane); });
  }
  ~Lanes() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Rethrows what make(i) threw.
  void wait(size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_[i]; });
    if (errors_[i]) std::rethrow_exception(errors_[i]);
  }
  void taken() {
    {
      const std::lock_guard lock(mutex_);
      ++taken_;
    }
    changed_.notify_all();
  }

 private:
  void run(int lane) {
    for (;;) {
      size_t i = 0;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || next_ == done_.size() || next_ < taken_ + ahead_; });
        if (stopped_ || next_ == done_.size()) return;
        i = next_++;
      }
      std::exception_ptr error;
      try {
        make_(lane, i);
      } catch (...) {
        error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        errors_[i] = error;
        done_[i] = true;
        // Those before it go on to their ends, and are taken.
        if (error) stopped_ = true;
      }
      changed_.notify_all();
    }
  }

  const size_t ahead_;
  std::vector<bool> done_;
  std::vector<std::exception_ptr> errors_;
  const std::function<void(int, size_t)>& make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0, taken_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void in_order(int lanes, size_t count, const std::function<void(int, size_t)>& make,
              const std::function<void(size_t)>& take) {
  Lanes work(lanes, count, make);
  for (size_t i = 0; i < count; ++i) {
    work.wait(i);
    take(i);
    work.taken();
  }
}

}  // namespace gramian
