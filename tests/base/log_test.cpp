#include "base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace gramian {
namespace {

std::string stderr_of(const auto& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

TEST(Log, QuietKeepsOnlyWarnings) {
  Log normal(LogLevel::normal), quiet(LogLevel::quiet);
  EXPECT_EQ(stderr_of([&] { normal.info("hello"); }), "hello\n");
  EXPECT_EQ(stderr_of([&] { quiet.info("hello"); }), "");
  EXPECT_EQ(stderr_of([&] { quiet.warn("careful"); }), "warning: careful\n");
}

TEST(Log, AWarningIsPrintedOnceAndCounted) {
  Log log(LogLevel::normal);
  const std::string text = stderr_of([&] {
    for (int i = 0; i < 3; ++i) log.warn("same");
    log.warn("other");
  });
  EXPECT_EQ(text, "warning: same\nwarning: other\n");
  EXPECT_EQ(log.warnings(), (std::map<std::string, int64_t>{{"same", 3}, {"other", 1}}));
}

TEST(Log, CountsFromSeveralThreads) {
  Log log(LogLevel::quiet);
  const std::string text = stderr_of([&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&log] {
        for (int i = 0; i < 100; ++i) log.warn("race");
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_EQ(text, "warning: race\n");
  EXPECT_EQ(log.warnings().at("race"), 400);
}

TEST(Progress, IsSilentWhereStderrIsNoTerminal) {
  const std::string text = stderr_of([] {
    // Made while stderr is a file.
    Log log(LogLevel::normal);
    EXPECT_FALSE(log.interactive());
    Progress progress(log, "rows", 3);
    for (int i = 0; i <= 3; ++i) progress.update(i, "detail");
  });
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace gramian
