// Quality of a model on token rows: perplexity, and against a reference KL divergence and agreement of the best token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/log.h"
#include "eval/reference_states.h"
#include "eval/statistics.h"
#include "runtime/resident_model.h"

namespace gramian {

struct EvalOptions {
  int64_t batch = 8;                           // rows per forward
  int64_t logit_bytes_max = int64_t{1} << 28;  // f32 logits held at a time, per model
  ReferenceStates* kept = nullptr;             // where the reference's states come from, or go to
  int64_t context = 1;                         // tokens with fewer before them in their row are not scored
};

struct KlTail {
  double median = 0, p90 = 0, p99 = 0, p999 = 0, max = 0;
};

// Of the predicted positions of one row: sums, and KL divergences one by one.
struct RowScore {
  double negative_log_likelihood = 0;
  double kl = 0;
  int64_t agreed = 0;
  int64_t positions = 0;
  std::vector<float> kl_at = {};
};

struct EvalResult {
  // exp of the mean negative log-likelihood of positions 2..L of every row.
  double perplexity = 0;
  int64_t tokens = 0;  // positions predicted
  double seconds = 0;  // of forwards and scores
  // Against the reference, over the same positions; intervals over rows.
  std::optional<Interval> kl;  // mean KL(reference || model) in nats
  double top1_agreement = 0;   // share of positions where both prefer the same token
  // KL that a half, 90 %, 99 % and 99.9 % of the positions stay below, and the largest.
  std::optional<KlTail> tail;
  std::vector<RowScore> rows;  // those of two tokens and more, in order
};

// The rows that have anything to predict, those of more than `context` tokens; throws invalid_argument when there are none.
std::vector<TokenRow> usable_rows(const std::vector<TokenRow>& rows, int64_t context = 1);

// Throws invalid_argument when no row has two tokens, or when the models' vocabularies differ; numerical when logits are
// not finite.
EvalResult evaluate(ResidentModel& model, ResidentModel* reference, const std::vector<TokenRow>& rows,
                    const EvalOptions& options, Log& log);
// Several models on the same rows, the reference's logits taken once.
std::vector<EvalResult> evaluate_all(const std::vector<ResidentModel*>& models, ResidentModel* reference,
                                     const std::vector<TokenRow>& rows, const EvalOptions& options, Log& log);

}  // namespace gramian
