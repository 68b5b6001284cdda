#include "base/watchdog.h"

#include <gtest/gtest.h>

namespace gramian {
namespace {

using std::chrono::milliseconds;

// Until there is a warning, for ten seconds at most.
bool warned(const Log& log) {
  for (int i = 0; i < 1000 && log.warnings().empty(); ++i) std::this_thread::sleep_for(milliseconds(10));
  return !log.warnings().empty();
}

TEST(WatchdogTest, NamesTheStageThatStands) {
  Log log(LogLevel::quiet);
  Watchdog watchdog(log, milliseconds(30));
  watchdog.at("layer 3, q_proj");
  ASSERT_TRUE(warned(log));
  EXPECT_NE(log.warnings().begin()->first.find("layer 3, q_proj"), std::string::npos);
}

TEST(WatchdogTest, IsSilentWhileSomethingMoves) {
  Log log(LogLevel::quiet);
  Watchdog watchdog(log, std::chrono::minutes(10));
  for (int i = 0; i < 5; ++i) watchdog.at("moving");
  EXPECT_TRUE(log.warnings().empty());
}

TEST(WatchdogTest, NoPatienceIsNoWatch) {
  Log log(LogLevel::quiet);
  {
    Watchdog watchdog(log, milliseconds(0));
  }
  EXPECT_TRUE(log.warnings().empty());
}

}  // namespace
}  // namespace gramian
