// A model of ours as a LayerForward: one layer's weights are in memory at a time, the next one's are read ahead.
#pragma once

#include "pipeline/calibrator.h"
#include "pipeline/layer_forward.h"
#include "pipeline/ranks.h"

namespace gramian {

class ModelForward final : public LayerForward {
 public:
  // `ranks`: those that have the other rows, whose statistics become those of all; null: none. Both must outlive the object.
  ModelForward(const Model& model, const std::vector<TokenRow>& rows, const CalibratorOptions& options,
               Ranks* ranks = nullptr)
      : model_(model), calibrator_(model, rows, options), statistic_(options.statistic), ranks_(ranks) {}
  int64_t tokens() const override { return calibrator_.tokens(); }
  int64_t batches() const override { return calibrator_.batches(); }
  Counts counts() const override {
    return {calibrator_.linear_multiplications(), calibrator_.accumulations(),
            calibrator_.activations().parked_bytes()};
  }
  void run_layer(size_t index, const Solver& solve, bool with_statistics) override;
  void run_head(Linear& head, const Solver& solve) override {
    calibrator_.run_head(head, of_all_ranks(solve));
  }
  std::string save(const std::filesystem::path& folder) override { return calibrator_.save(folder); }
  bool load(const std::filesystem::path& folder, const std::string& digest) override {
    return calibrator_.load(folder, digest);
  }
  int64_t hidden_bytes() const override { return calibrator_.hidden_bytes(); }

 private:
  Solver of_all_ranks(const Solver& solve) const;
  const Model& model_;
  Calibrator calibrator_;
  Statistic statistic_;
  Ranks* ranks_;
};

}  // namespace gramian
