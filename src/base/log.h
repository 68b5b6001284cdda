// Messages and progress on stderr; stdout belongs to results. Passed in, never global.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace gramian {

enum class LogLevel { quiet, normal };

// Thread-safe. `quiet` still prints warnings.
class Log {
 public:
  explicit Log(LogLevel level = LogLevel::normal);
  void info(const std::string& message);
  // Prints each distinct `message` once and counts its repetitions.
  void warn(const std::string& message);
  // How often warn() was called, per message.
  std::map<std::string, int64_t> warnings() const;
  LogLevel level() const noexcept { return level_; }
  // Whether a progress line may be drawn: stderr is a terminal and the level is normal.
  bool interactive() const noexcept { return interactive_; }

 private:
  friend class Progress;
  void clear_line();
  LogLevel level_;
  bool interactive_;
  bool line_drawn_ = false;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> warnings_;
};

// One line with a bar and the expected end, redrawn in place; silent when stderr is not a terminal.
class Progress {
 public:
  // `total` units of `what` (for example "layers").
  Progress(Log& log, std::string what, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // `done` of `total` units are finished; `detail` names the work in hand.
  void update(double done, const std::string& detail = "");

 private:
  Log& log_;
  std::string what_;
  int64_t total_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
};

}  // namespace gramian
