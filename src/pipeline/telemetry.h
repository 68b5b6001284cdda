// What a job does, as it does it: one JSON object a line, each with "event", "ts" (seconds since 1970) and its own fields
// (docs/telemetry.md), for whoever watches or explains a long job.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace gramian {

class Telemetry {
 public:
  using Json = nlohmann::ordered_json;

  // Appends to `file`; an empty path: nothing is written. Throws io when the file cannot be opened.
  Telemetry(const std::filesystem::path& file, Log& log);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // A line is written whole or, when the disk is full, not at all: then there is one warning and the job goes on. From the
  // thread that drives the job only.
  void event(const char* name, const Json& fields);

 private:
  Log& log_;
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace gramian
