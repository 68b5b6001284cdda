#include "base/watchdog.h"

#include "base/error.h"
#include "base/format.h"

namespace gramian {

Watchdog::Watchdog(Log& log, std::chrono::milliseconds patience)
    : log_(log), patience_(patience), next_(patience) {
  if (patience.count() > 0) thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::at(const std::string& stage) {
  const std::lock_guard lock(mutex_);
  stage_ = stage;
  since_ = std::chrono::steady_clock::now();
  next_ = patience_;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!done_) {
    const auto due = since_ + next_;
    if (std::chrono::steady_clock::now() < due) {
      changed_.wait_until(lock, due);
      continue;
    }
    const double seconds = std::chrono::duration<double>(next_).count();
    log_.warn(str("nothing has moved for ", fixed(seconds, seconds < 10 ? 1 : 0),
                  " s: ", stage_.empty() ? "before the first stage" : stage_));
    next_ *= 2;
  }
}

}  // namespace gramian
