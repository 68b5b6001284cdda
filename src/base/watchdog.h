// Says which stage a job stands in when nothing has moved for long.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "base/log.h"

namespace gramian {

class Watchdog {
 public:
  // Warns after `patience` without at(), once a stage and then each time the silence has doubled. 0: never.
  Watchdog(Log& log, std::chrono::milliseconds patience);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  // The job has come to this stage.
  void at(const std::string& stage);

 private:
  void watch();
  Log& log_;
  std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::string stage_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  std::chrono::milliseconds next_;  // silence after which the next warning is due
  std::thread thread_;
};

}  // namespace gramian
