#include "base/ordered_lanes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace gramian {
namespace {

TEST(OrderedLanes, TakesInOrderWhateverIsReadyFirst) {
  for (const int lanes : {1, 2, 5}) {
    std::vector<size_t> made(40, 0), taken;
    in_order(
        lanes, made.size(),
        [&](int lane, size_t i) {
          EXPECT_GE(lane, 0);
          EXPECT_LT(lane, lanes);
          std::this_thread::sleep_for(std::chrono::microseconds(i % 3 * 300));
          made[i] = i + 1;
        },
        [&](size_t i) {
          EXPECT_EQ(made[i], i + 1);
          taken.push_back(i);
        });
    ASSERT_EQ(taken.size(), made.size());
    for (size_t i = 0; i < taken.size(); ++i) EXPECT_EQ(taken[i], i);
  }
  in_order(3, 0, [](int, size_t) { FAIL(); }, [](size_t) { FAIL(); });
}

// Each waits for the other to be at work too: this ends only where they overlap.
TEST(OrderedLanes, LanesWorkAtOneTime) {
  std::latch together(2);
  std::set<int> lanes;
  std::vector<int> lane_of(2);
  in_order(
      2, 2,
      [&](int lane, size_t i) {
        together.arrive_and_wait();
        lane_of[i] = lane;
      },
      [&](size_t i) { lanes.insert(lane_of[i]); });
  EXPECT_EQ(lanes.size(), 2U);
}

TEST(OrderedLanes, NoMoreThanTheLanesWait) {
  std::atomic<int> waiting = 0, most = 0;
  in_order(
      3, 60,
      [&](int, size_t) {
        const int now = ++waiting;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
      },
      [&](size_t) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        --waiting;
      });
  // The one that is being taken counts.
  EXPECT_LE(most, 3);
}

TEST(OrderedLanes, AnErrorEndsTheOthers) {
  std::atomic<size_t> made = 0;
  std::vector<size_t> taken;
  const auto run = [&] {
    in_order(
        2, 1000,
        [&](int, size_t i) {
          if (i == 7) throw std::runtime_error("seven");
          ++made;
        },
        [&](size_t i) { taken.push_back(i); });
  };
  EXPECT_THROW(
      try { run(); } catch (const std::runtime_error& error) {
        EXPECT_EQ(std::string(error.what()), "seven");
        throw;
      },
      std::runtime_error);
  EXPECT_EQ(taken, (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_LT(made, 20U);
  EXPECT_THROW(in_order(
                   2, 9, [](int, size_t) {}, [](size_t) { throw std::runtime_error("taking"); }),
               std::runtime_error);
}

}  // namespace
}  // namespace gramian
