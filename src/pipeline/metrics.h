// How far a job is, as a file that Prometheus' node exporter collects (the text format, one gauge a line).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/log.h"

namespace gramian {

struct JobProgress {
  int64_t layers = 0, finished_layers = 0;
  int64_t modules = 0, solved_modules = 0;
  int64_t fallbacks = 0;
  int64_t tokens = 0;  // of calibration
  double seconds = 0;  // since the job began, earlier runs included
  std::optional<double> seconds_left = {};
  std::optional<int64_t> memory_limit = {};  // of --memory
  bool finished = false;
};

class Metrics {
 public:
  // An empty path: nothing is written. `output` becomes the label of every line. Throws
  // invalid_argument for a file in no folder, io when it cannot be written.
  Metrics(std::filesystem::path file, const std::filesystem::path& output, Log& log);
  bool wanted() const noexcept { return !file_.empty(); }
  // Writes the file anew under a temporary name and renames it, at most once a second unless `now`. When that fails there is one
  // warning and the job goes on.
  void write(const JobProgress& progress, bool now = false);

 private:
  void replace(const JobProgress& progress);
  std::filesystem::path file_;
  std::string label_;
  Log& log_;
  std::chrono::steady_clock::time_point written_;
};

// The text itself. `label`: {output="..."}.
std::string metrics_text(const JobProgress& progress, const std::string& label, double unix_time,
                         int64_t resident, int64_t peak);

}  // namespace gramian
