// The statistics of one pass over the original model (--sequential none), kept so that other settings can be tried without
// another forward. One safetensors file: "identity", what they depend on, as JSON text; and for each input, under the name of
// the first module that reads it, NAME.hessian f32 [in, in], NAME.tokens i64 [1], NAME.expert u8 [1] (1: of one expert's).
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "pipeline/calibrator.h"
#include "pipeline/plan.h"

namespace gramian {

// The linear layers of every layer, grouped by the input they read.
using LayerInputs = std::vector<std::vector<std::vector<Linear>>>;

// Writes beside the file, in FILE.partial/, and renames at the end. What an unfinished job left there is completed.
class StatisticsWriter {
 public:
  // Throws io.
  StatisticsWriter(std::filesystem::path file, const std::string& identity, const LayerInputs& inputs);
  // Whether an unfinished job of this identity has left its part for `file`.
  static bool begun(const std::filesystem::path& file, const std::string& identity);
  // Takes layer `layer` as an earlier run has written it.
  void keep(size_t layer);
  void write(const PauseStatistics& statistics);
  void sync() { writer_.sync(); }
  void finish();

 private:
  std::filesystem::path file_, folder_;
  LayerInputs inputs_;
  ModelWriter writer_;
};

class StatisticsFile {
 public:
  // Throws corrupt_data for a file that is none, invalid_argument naming what differs when it is of another model or of other
  // rows or settings.
  StatisticsFile(const std::filesystem::path& file, const nlohmann::ordered_json& identity);
  // `modules` read one input; their statistics.
  PauseStatistics read(const std::vector<Linear*>& modules) const;

 private:
  SafetensorsFile file_;
  std::filesystem::path path_;
};

}  // namespace gramian
