// Runs another program: no shell, its input and output in memory, its time and output bounded.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gramian {

struct ChildLimits {
  std::chrono::milliseconds time_max{30'000};
  size_t output_bytes_max = size_t{64} << 20;
};

struct ChildResult {
  enum class End {
    exited,    // with `exit_code`
    crashed,   // ended by `signal`
    missing,   // there is no such program, or it cannot be executed
    too_long,  // killed after time_max
    too_much   // killed after output_bytes_max bytes
  };
  End end = End::exited;
  int exit_code = 0;
  int signal = 0;
  std::string output;  // stdout
};

// `command`: program (searched in PATH when it has no slash) and arguments. The child reads `input` on stdin; its stderr is
// dropped; it inherits the environment and no open file. Throws io when the system refuses, interrupted (after killing the
// child) when a signal arrived.
ChildResult run_child(const std::vector<std::string>& command, std::string_view input,
                      const ChildLimits& limits);

}  // namespace gramian
