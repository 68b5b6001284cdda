#include "cli/openmp.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace gramian::cli {

void restart_with_blocking_openmp() {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  // Rounds of the spinning loop: microseconds.
  if (::setenv("GOMP_SPINCOUNT", "1000", 1) != 0) return;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<char*> arguments;
  for (size_t begin = 0; begin < line.size(); begin = line.find('\0', begin) + 1)
    arguments.push_back(line.data() + begin);
  if (arguments.empty()) return;
  arguments.push_back(nullptr);
  // Returns only when it fails, and then the job runs as it is.
  ::execv("/proc/self/exe", arguments.data());
}

}  // namespace gramian::cli
