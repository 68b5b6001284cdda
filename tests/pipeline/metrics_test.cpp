#include "pipeline/metrics.h"

#include <gtest/gtest.h>

namespace gramian {
namespace {

TEST(MetricsTest, IsPrometheusText) {
  JobProgress progress{.layers = 4, .finished_layers = 1, .modules = 28, .solved_modules = 9};
  progress.seconds = 12.5;
  const std::string text = metrics_text(progress, "{output=\"/a\"}", 1.5, 1000, 2000);
  EXPECT_NE(text.find("# TYPE gramian_finished_layers gauge\ngramian_finished_layers{output=\"/a\"} 1.0\n"),
            std::string::npos);
  EXPECT_NE(text.find("gramian_seconds{output=\"/a\"} 12.5\n"), std::string::npos);
  EXPECT_EQ(text.find("seconds_left"), std::string::npos);
  EXPECT_EQ(text.find("memory_limit"), std::string::npos);
  progress.seconds_left = 30;
  progress.memory_limit = 4096;
  const std::string more = metrics_text(progress, "", 1.5, 1000, 2000);
  EXPECT_NE(more.find("gramian_seconds_left 30.0\n"), std::string::npos);
  EXPECT_NE(more.find("gramian_memory_limit_bytes 4096.0\n"), std::string::npos);
}

}  // namespace
}  // namespace gramian
