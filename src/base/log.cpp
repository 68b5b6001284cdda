#include "base/log.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace gramian {
namespace {

std::string clock_text(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(seconds));
  char text[32];
  std::snprintf(text, sizeof text, "%lld:%02lld", static_cast<long long>(total / 60),
                static_cast<long long>(total % 60));
  return text;
}

// Columns that a line may have.
size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79u;
}

}  // namespace

Log::Log(LogLevel level)
    : level_(level), interactive_(level == LogLevel::normal && ::isatty(STDERR_FILENO) == 1) {}

// The cursor stands in the first of two lines.
void Log::clear_line() {
  if (line_drawn_) std::fputs("\r\033[K\n\033[K\033[A", stderr);
  line_drawn_ = false;
}

void Log::info(const std::string& message) {
  if (level_ == LogLevel::quiet) return;
  const std::lock_guard lock(mutex_);
  clear_line();
  std::fprintf(stderr, "%s\n", message.c_str());
}

void Log::warn(const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (++warnings_[message] > 1) return;
  clear_line();
  std::fprintf(stderr, "warning: %s\n", message.c_str());
}

std::map<std::string, int64_t> Log::warnings() const {
  const std::lock_guard lock(mutex_);
  return warnings_;
}

Progress::Progress(Log& log, std::string what, int64_t total)
    : log_(log),
      what_(std::move(what)),
      total_(std::max<int64_t>(total, 1)),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  const std::lock_guard lock(log_.mutex_);
  log_.clear_line();
}

void Progress::update(double done, const std::string& detail) {
  if (!log_.interactive()) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double share = std::clamp(done / static_cast<double>(total_), 0.0, 1.0);
  constexpr int kWidth = 24;
  const int filled = static_cast<int>(share * kWidth);
  const std::string bar =
      std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(kWidth - filled), '.');
  const std::string eta = share > 0 ? clock_text(elapsed / share - elapsed) : "?";
  const std::lock_guard lock(log_.mutex_);
  char line[512];
  std::snprintf(line, sizeof line, "[%s] %.1f/%lld %s, %s gone, %s left", bar.c_str(), done,
                static_cast<long long>(total_), what_.c_str(), clock_text(elapsed).c_str(), eta.c_str());
  // Lines that the terminal would break could not be drawn over.
  const size_t width = terminal_width();
  std::fprintf(stderr, "\r\033[K%s\n\033[K%s\r\033[A", std::string(line).substr(0, width).c_str(),
               detail.substr(0, width).c_str());
  std::fflush(stderr);
  log_.line_drawn_ = true;
}

}  // namespace gramian
