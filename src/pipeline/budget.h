// What a calibrated job will hold in memory and how long it will take, found before it starts by running a few rows through one
// layer of each kind; under a budget also how batches have to wait and how many experts may be open at a time. None of it
// changes a byte of the result. docs/memory.md has the formula.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "pipeline/calibrator.h"
#include "pipeline/plan.h"
#include "solve/quantized.h"

namespace gramian {

// What a module of this shape takes while it is solved: the fp32 weight, codes, packed words, what is read back, the weight that the forward
// goes on with (docs/memory.md).
int64_t solving_bytes(int64_t rows, int64_t columns);

enum class Activations { automatic, suspend, spill, replay };
// "auto", "suspend", "spill", "replay"; throws invalid_argument for another word.
Activations parse_activations(const std::string& text);

struct BudgetOptions {
  // Bound of the process's resident memory, mapped pages included; without it nothing is bounded.
  std::optional<int64_t> memory_bytes = std::nullopt;
  Activations activations = Activations::automatic;
  int64_t held_out_tokens = 0;  // of rows that each layer is tried on (pipeline/held_out.h)
  // Where waiting activations may be put into a file.
  std::filesystem::path scratch = {};
};

struct MemoryPart {
  std::string what;
  int64_t bytes = 0;
};

struct BudgetPlan {
  Waiting waiting = Waiting::suspend;
  bool spill = false;
  int64_t expert_wave = 1;
  std::string worst;              // the module at which memory is largest
  std::vector<MemoryPart> parts;  // there
  int64_t peak_bytes = 0;         // their sum
  int64_t smallest_bytes = 0;     // with which the job could run at all
  int64_t activation_bytes = 0;   // of batches, waiting and at work, at most
  int64_t spill_bytes = 0;        // written to the scratch folder at most at one time
  // Expected seconds of the layers' work; scan, reading and writing come on top.
  double forward_seconds = 0, statistics_seconds = 0, factor_seconds = 0, solve_seconds = 0;
  double seconds() const { return forward_seconds + statistics_seconds + factor_seconds + solve_seconds; }
};

// `calibrator`: batch, lanes, threads and order of the job. Loads and runs single layers. Throws unsupported when the budget
// cannot work, naming the smallest that can.
BudgetPlan plan_budget(const Model& model, const QuantizePlan& plan, const std::vector<TokenRow>& rows,
                       const CalibratorOptions& calibrator, const SolveOptions& solve,
                       const BudgetOptions& options, ThreadPool& pool);

nlohmann::ordered_json to_json(const BudgetPlan& plan);

}  // namespace gramian
