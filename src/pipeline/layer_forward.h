// The calibration rows on their way through a model, layer after layer, whoever computes it: our own forward
// (pipeline/model_forward.h), or a foreign model's through its hooks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "pipeline/pause_sums.h"

namespace gramian {

class LayerForward {
 public:
  using Solver = std::function<void(const PauseStatistics&)>;
  struct Counts {
    int64_t linear_multiplications = 0;  // products of one batch with one linear layer
    int64_t accumulations = 0;           // inputs of one batch added to one sum
    int64_t parked_bytes = 0;            // of activations that waited in a file
  };

  virtual ~LayerForward() = default;
  virtual int64_t tokens() const = 0;
  virtual int64_t batches() const = 0;
  virtual Counts counts() const = 0;
  // Takes every batch through decoder layer `index`, as Calibrator::run_layer() does.
  virtual void run_layer(size_t index, const Solver& solve, bool with_statistics) = 0;
  // Behind the last layer: `solve` is called once with the statistics of what the head reads.
  virtual void run_head(Linear& head, const Solver& solve) = 0;
  // The batches' activations, the input of the next layer, as Calibrator's.
  virtual std::string save(const std::filesystem::path& folder) = 0;
  virtual bool load(const std::filesystem::path& folder, const std::string& digest) = 0;
  virtual int64_t hidden_bytes() const = 0;
};

}  // namespace gramian
