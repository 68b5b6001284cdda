// What `gramian demo --json` says, read back and checked: a saved document comes from anywhere.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gramian {

struct ReportModule {
  std::string name;
  int64_t out_features = 0, in_features = 0;
  std::optional<double> relative_error;  // share, not percent; nothing where it was not measured
};

struct ReportJob {
  std::string method;
  int64_t group_size = 0;
  int64_t tokens = 0;                                  // of calibration
  std::vector<std::pair<std::string, double>> stages;  // name, seconds
  std::vector<ReportModule> modules;
};

struct ReportRow {
  std::string variant;
  double bytes = 0, bits_per_weight = 0, perplexity = 0, kl_mean = 0, top1_agreement = 0;
  std::optional<std::pair<double, double>> kl_ci95;
  double seconds = 0, peak_rss_bytes = 0;
  std::optional<ReportJob> job;  // the first row, the original, has none; every other one does
};

struct ReportStory {
  std::string prompt, original, variant, quantized;
};

struct ReportDocument {
  std::string gramian, libtorch, model, cpu, cpu_level;
  std::string date;  // "2026-11-29T19:31:05Z"
  int64_t threads = 0, held_out_rows = 0, held_out_tokens = 0;
  std::vector<ReportRow> rows;
  std::vector<std::string> commands;
  std::optional<ReportStory> story;
};

// Throws corrupt_data naming `where` and the key for a document that lacks a key, or holds a value of the wrong type, size or
// range. Unknown keys are passed over. Keys: docs/report.md.
ReportDocument read_report_document(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace gramian
