#include "base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"

extern char** environ;

namespace gramian {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& program, const std::string& what) {
  throw Error(ErrorKind::io, program, str(what, ": ", std::strerror(errno)));
}

struct Descriptor {
  int fd = -1;
  Descriptor() = default;
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
};

// A file in memory rather than a pipe: the child may read it when it likes, or die without reading.
void fill_input(Descriptor& file, std::string_view input, const std::string& program) {
  file.fd = ::memfd_create("input", MFD_CLOEXEC);
  if (file.fd < 0) fail(program, "cannot make a file in memory");
  for (size_t at = 0; at < input.size();) {
    const ssize_t written = ::write(file.fd, input.data() + at, input.size() - at);
    if (written < 0 && errno != EINTR) fail(program, "cannot write its input");
    if (written > 0) at += static_cast<size_t>(written);
  }
  if (::lseek(file.fd, 0, SEEK_SET) != 0) fail(program, "cannot rewind its input");
}

// A running child, killed and reaped when it goes out of scope.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // Whether it has ended; `status` as waitpid gives it.
  bool ended(int& status) {
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
    pid_ = -1;
    return true;
  }

 private:
  pid_t pid_;
};

// 0, with `pid`, or an error number.
int spawn(const std::vector<std::string>& command, int in, int out, pid_t& pid) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  const int error = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& command, std::string_view input,
                      const ChildLimits& limits) {
  GRAMIAN_CHECK(!command.empty(), "no program");
  const std::string& program = command[0];
  Descriptor in, read_end, write_end;
  fill_input(in, input, program);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail(program, "cannot make a pipe");
  read_end.fd = ends[0];
  write_end.fd = ends[1];

  ChildResult result;
  pid_t pid = -1;
  if (const int error = spawn(command, in.fd, write_end.fd, pid); error != 0) {
    result.end = ChildResult::End::missing;
    if (error == ENOENT || error == EACCES || error == ENOTDIR || error == ENOEXEC) return result;
    errno = error;
    fail(program, "cannot start it");
  }
  Child child(pid);
  write_end.close();

  const auto end = Clock::now() + limits.time_max;
  std::array<char, 1 << 16> buffer;
  for (int status = 0;;) {
    throw_if_interrupted();
    if (Clock::now() >= end) {
      result.end = ChildResult::End::too_long;
      return result;
    }
    pollfd wait{read_end.fd, POLLIN, 0};
    if (read_end.fd >= 0 && ::poll(&wait, 1, 50) <= 0) continue;
    const ssize_t count = read_end.fd < 0 ? 0 : ::read(read_end.fd, buffer.data(), buffer.size());
    if (count < 0 && errno != EINTR) fail(program, "cannot read its output");
    if (count > 0) {
      result.output.append(buffer.data(), static_cast<size_t>(count));
      if (result.output.size() > limits.output_bytes_max) {
        result.end = ChildResult::End::too_much;
        return result;
      }
    } else if (count == 0) {
      read_end.close();
      if (child.ended(status)) {
        result.end = WIFEXITED(status) ? ChildResult::End::exited : ChildResult::End::crashed;
        if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
        if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
        return result;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace gramian
