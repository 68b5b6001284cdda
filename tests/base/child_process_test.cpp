#include "base/child_process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>

namespace gramian {
namespace {

using End = ChildResult::End;

TEST(ChildProcessTest, PassesInputAndReturnsOutput) {
  std::string input(1 << 20, 'x');
  input += '\0';
  const ChildResult result = run_child({"cat"}, input, {});
  EXPECT_EQ(result.end, End::exited);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, input);
}

TEST(ChildProcessTest, ArgumentsAreNotReadByAShell) {
  EXPECT_EQ(run_child({"printf", "%s|", "a b", "$HOME;`id`", ""}, "", {}).output, "a b|$HOME;`id`||");
}

TEST(ChildProcessTest, SaysHowTheChildEnded) {
  EXPECT_EQ(run_child({"sh", "-c", "exit 3"}, "", {}).exit_code, 3);
  const ChildResult killed = run_child({"sh", "-c", "kill -TERM $$"}, "", {});
  EXPECT_EQ(killed.end, End::crashed);
  EXPECT_EQ(killed.signal, SIGTERM);
  EXPECT_EQ(run_child({"/nonexistent/program"}, "", {}).end, End::missing);
  EXPECT_EQ(run_child({"no-program-of-this-name"}, "", {}).end, End::missing);
  EXPECT_EQ(run_child({"/etc/passwd"}, "", {}).end, End::missing);
}

TEST(ChildProcessTest, TimeAndOutputAreBounded) {
  using namespace std::chrono_literals;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(run_child({"sleep", "60"}, "", {.time_max = 200ms}).end, End::too_long);
  // Also when it has closed its output.
  EXPECT_EQ(run_child({"sh", "-c", "exec >&-; exec sleep 60"}, "", {.time_max = 200ms}).end, End::too_long);
  EXPECT_EQ(run_child({"yes"}, "", {.output_bytes_max = 1000}).end, End::too_much);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

TEST(ChildProcessTest, TheChildHasNoFileOfOurs) {
  // The shell itself opens none; 0, 1 and 2 are all.
  const ChildResult result = run_child({"sh", "-c", "ls /proc/$$/fd"}, "", {});
  EXPECT_EQ(result.output, "0\n1\n2\n");
}

}  // namespace
}  // namespace gramian
