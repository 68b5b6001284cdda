#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace gramian {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      pool.run(count, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
      for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
    }
    pool.run(-1, [](int64_t) { FAIL() << "a negative count has no tasks"; });
  }
}

TEST(ThreadPool, OneThreadRunsOnTheCaller) {
  ThreadPool pool(1);
  pool.run(5,
           [caller = std::this_thread::get_id()](int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(ThreadPool, UsesItsThreads) {
  ThreadPool pool(3);
  std::atomic<int> arrived{0};
  std::set<std::thread::id> ids;
  std::mutex mutex;
  // Each task waits for the others: only three threads at once can finish this.
  pool.run(3, [&](int64_t) {
    ++arrived;
    while (arrived.load() < 3) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 3u);
}

TEST(ThreadPool, CarriesTheFirstExceptionOutAndStaysUsable) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    std::atomic<int64_t> after{0};
    try {
      pool.run(1000, [&](int64_t i) {
        if (i == 2) throw std::runtime_error("task " + std::to_string(i));
        if (i > 2) ++after;
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "task 2");
    }
    // Tasks after the failure are dropped, except those that other threads have taken already.
    if (threads == 1) {
      EXPECT_EQ(after.load(), 0);
    }
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::atomic<int64_t> sum{0};
      pool.run(100, [&](int64_t i) { sum += i; });
      EXPECT_EQ(sum.load(), 4950);
    }
  }
}

TEST(ThreadPool, EveryTaskMayThrow) {
  ThreadPool pool(3);
  for (int repeat = 0; repeat < 50; ++repeat) {
    EXPECT_THROW(pool.run(20, [](int64_t) { throw std::runtime_error("all"); }), std::runtime_error);
  }
}

TEST(ThreadPool, CallersTakeTurns) {
  ThreadPool pool(3);
  std::vector<int64_t> sums(4, 0);
  std::atomic<int> inside{0};
  std::vector<std::thread> callers;
  for (size_t c = 0; c < sums.size(); ++c) {
    callers.emplace_back([&, c] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::atomic<int64_t> sum{0};
        pool.run(10, [&](int64_t i) {
          EXPECT_LE(++inside, 3);
          sum += i;
          --inside;
        });
        sums[c] += sum.load();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int64_t sum : sums) EXPECT_EQ(sum, 50 * 45);
}

}  // namespace
}  // namespace gramian
