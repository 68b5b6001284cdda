// Quality of a model on token rows: perplexity, and against a reference KL divergence and agreement of the best token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/log.h"
#include "eval/statistics.h"
#include "runtime/resident_model.h"

namespace gramian {

struct EvalOptions {
  int64_t batch = 8;                           // rows per forward
  int64_t logit_bytes_max = int64_t{1} << 28;  // f32 logits held at a time, per model
};

struct EvalResult {
  // exp of the mean negative log-likelihood of positions 2..L of every row.
  double perplexity = 0;
  int64_t tokens = 0;  // positions predicted
  double seconds = 0;  // of forwards and scores
  // Against the reference, over the same positions; intervals over rows.
  std::optional<Interval> kl;  // mean KL(reference || model) in nats
  double top1_agreement = 0;   // share of positions where both prefer the same token
};

// Throws invalid_argument when no row has two tokens, or when the models' vocabularies differ; numerical when logits are
// not finite.
EvalResult evaluate(ResidentModel& model, ResidentModel* reference, const std::vector<TokenRow>& rows,
                    const EvalOptions& options, Log& log);

}  // namespace gramian
