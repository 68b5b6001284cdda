#include "base/resources.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

namespace gramian {

namespace {

// A line "KEY: 123 kB" of the process's status, in bytes; -1 where the system does not say.
int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    long long kib = 0;
    if (line.starts_with(key + ":") && std::sscanf(line.c_str() + key.size() + 1, " %lld kB", &kib) == 1)
      return kib * 1024;
  }
  return -1;
}

}  // namespace

int64_t resident_bytes() { return std::max<int64_t>(0, status_bytes("VmRSS")); }

void return_freed_memory() {
#ifdef __GLIBC__
  // Setting it also ends its growth with the size of what is freed.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

int64_t peak_rss_bytes() {
  if (const int64_t bytes = status_bytes("VmHWM"); bytes >= 0) return bytes;
  struct rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

bool reset_peak_rss() {
  std::ofstream control("/proc/self/clear_refs");
  control << "5" << std::flush;
  return control.good();
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace gramian
