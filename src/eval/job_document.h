// What a quantization says of itself: the report in its output folder, or its telemetry, which a job that broke off leaves too.
// Both are checked: saved documents come from anywhere.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "eval/report_document.h"

namespace gramian {

struct JobModule {
  ReportModule module;
  std::string fallback;           // why it was rounded plainly; empty: it was not
  std::optional<int64_t> tokens;  // behind its Hessian
  std::optional<double> diagonal_spread;
  int64_t dead_columns = 0, damp_attempts = 0, zero_groups = 0, bits = 0;
  int64_t group_size = 0;  // -1: one scale a row; 0: not said
};

struct MemoryPoint {
  double seconds = 0;  // since 1970
  double bytes = 0;    // resident
};

// How a finished layer did on held-out rows; shares of the output's norm.
struct JobProof {
  int64_t layer = 0;
  std::optional<double> own, since_first;  // of the layer alone, and of all that is quantized so far
};
struct FlaggedModule {
  std::string name, reason;  // "": nothing unusual
  double error = 0;
};

// What gramian eval says of the output.
struct JobEvaluation {
  struct Part {
    int64_t low = 0, high = 0, tokens = 0;  // of context
    double negative_log_likelihood = 0;
    std::optional<double> kl;
  };
  double perplexity = 0;
  std::optional<double> kl;
  std::optional<std::pair<double, double>> kl_ci95;
  int64_t tokens = 0;
  std::vector<Part> by_position;
};

struct JobDocument {
  std::string name;  // of the output, as far as it is known
  std::string gramian, method, format, cpu_level;
  std::string command;  // a shell line that repeats the job; empty: not said
  int64_t layers = 0;   // of the model; 0: not said
  int64_t finished_layers = 0;
  bool finished = false;
  int64_t tokens = 0, fallbacks = 0, resumed_at = 0;
  std::optional<double> weight_bytes, bits_per_weight, bits_per_weight_total, planned_bytes, planned_seconds;
  double seconds = 0, peak_rss_bytes = 0;
  std::vector<std::pair<std::string, double>> stages;
  std::vector<JobModule> modules;
  std::vector<std::string> skipped, starved_experts;
  int64_t adopted = 0, sums = 0;  // linear layers with another's Hessian, and Hessians taken
  std::vector<MemoryPoint> memory;
  int64_t held_out_rows = 0, held_out_tokens = 0;  // 0: not said
  double held_out_limit = 0;                       // 0: not said
  std::vector<JobProof> proofs;                    // by layer
  std::vector<FlaggedModule> flagged;
  std::optional<JobEvaluation> evaluation;  // from elsewhere, as are:
  std::vector<ReportStory> stories;
};

// Of a report (docs/report.md). Throws corrupt_data naming `where` and the key; unknown keys are passed over.
JobDocument read_job_report(const nlohmann::ordered_json& json, const std::string& where);
// Of telemetry (docs/telemetry.md), one JSON object a line; what was appended by later runs of the job goes on from it, and a last
// line that a crash cut off is passed over. Throws corrupt_data naming `where` and the line.
JobDocument read_job_telemetry(const std::string& text, const std::string& where);
// Of what gramian eval --json printed. Throws corrupt_data likewise.
JobEvaluation read_evaluation(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace gramian
