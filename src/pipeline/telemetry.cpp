#include "pipeline/telemetry.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace gramian {

Telemetry::Telemetry(const std::filesystem::path& file, Log& log) : log_(log), path_(file) {
  if (file.empty()) return;
  fd_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    throw Error(ErrorKind::io, file.string(), str("cannot open: ", std::strerror(errno)),
                "name another file for --telemetry");
  }
}

Telemetry::~Telemetry() {
  if (fd_ >= 0) ::close(fd_);
}

void Telemetry::event(const char* name, const Json& fields) {
  if (fd_ < 0) return;
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  Json line = {{"event", name}, {"ts", std::round(now * 1e6) / 1e6}};
  line.update(fields);
  const std::string text = line.dump() + "\n";
  const off_t before = ::lseek(fd_, 0, SEEK_END);
  const ssize_t written = ::write(fd_, text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) return;
  const std::string reason = written < 0 ? std::strerror(errno) : "the disk is full";
  if (before >= 0 && ::ftruncate(fd_, before) != 0) log_.warn(path_.string() + ": ends in half a line");
  log_.warn(str(path_.string(), ": telemetry ends here: ", reason));
  ::close(fd_);
  fd_ = -1;
}

}  // namespace gramian
