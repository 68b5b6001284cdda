// Rows that no statistic sees. Behind every layer of a job they go through it too, in the original and in the quantized model: what
// quantization costs is known when a layer is finished, not when the model is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pipeline/calibrator.h"

namespace gramian {

// Mean over median of a Hessian's diagonal above which few input columns dominate a module.
inline constexpr double kOutlierSpread = 30;

class HeldOut {
 public:
  // Embeds the rows. `options`: batch, threads and expert wave of the job. `model` must outlive the object.
  HeldOut(const Model& model, const std::vector<TokenRow>& rows, const CalibratorOptions& options);

  // Errors are the root of the mean over tokens of ‖y - q‖² / ‖y‖², y the output of the layer with its residual.
  struct Loss {
    double own = 0;          // of the layer alone: both forms get what the quantized layers before it make
    double since_first = 0;  // q of the quantized model, y of the original one
    std::map<std::string, double> modules;  // relative_error() of each quantized linear layer on these rows
  };
  // What is stored for a linear layer; null: it stays as it is.
  using Stored = std::function<std::shared_ptr<const LinearOp>(const Linear&)>;
  // Takes the rows through decoder layer `index`, which is the next one.
  Loss run_layer(int64_t index, const Stored& stored);
  // The same with nothing measured.
  void pass_layer(int64_t index, const Stored& stored);

  int64_t rows() const noexcept { return rows_; }
  int64_t tokens() const noexcept { return original_.tokens(); }

 private:
  const Model& model_;
  int64_t rows_;
  Calibrator original_, quantized_;
};

// The most likely reason why a module loses much, from its entry in the report, `held_out_error` included; empty where nothing of
// it is unusual.
std::string likely_reason(const nlohmann::ordered_json& module);

}  // namespace gramian
