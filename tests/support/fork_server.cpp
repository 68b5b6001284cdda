// Runs commands of the program for the end-to-end tests, each in a process of its own, forked from this one: LibTorch is then
// loaded once and not once a command, which is most of what a command over a tiny model takes.
//
// A request on stdin is words that end with a zero byte: how many follow, files for stdout and stderr, the arguments. It is answered
// by a line with the process identifier and, when that has ended, one with its exit code, or minus the signal that ended it.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "cli/app.h"

namespace {

void redirect(int descriptor, const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (file < 0 || ::dup2(file, descriptor) < 0) {
    std::perror(path.c_str());
    std::_Exit(1);
  }
}

[[noreturn]] void run(std::vector<std::string> words) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
  redirect(STDOUT_FILENO, words[0], O_WRONLY | O_CREAT | O_TRUNC);
  redirect(STDERR_FILENO, words[1], O_WRONLY | O_CREAT | O_TRUNC);
  std::string program = "gramian";
  std::vector<char*> arguments = {program.data()};
  for (size_t i = 2; i < words.size(); ++i) arguments.push_back(words[i].data());
  arguments.push_back(nullptr);
  gramian::cli::leave(gramian::cli::run(static_cast<int>(arguments.size() - 1), arguments.data()));
}

std::string word() {
  std::string text;
  std::getline(std::cin, text, '\0');
  return text;
}

}  // namespace

int main() {
  for (std::string count = word(); !count.empty(); count = word()) {
    std::vector<std::string> words(std::stoul(count));
    for (std::string& each : words) each = word();
    const pid_t child = ::fork();
    if (child < 0) {
      std::perror("fork");
      return 1;
    }
    if (child == 0) run(std::move(words));
    std::cout << child << std::endl;
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    std::cout << (WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status)) << std::endl;
  }
  return 0;
}
