// Quality of a model on token rows: perplexity, and against a reference KL divergence and agreement of the best token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "eval/reference_states.h"
#include "eval/statistics.h"
#include "runtime/resident_model.h"

namespace gramian {

// Windows of `length` tokens that slide over each row by `stride`, as the documentation of transformers has them: every token
// but the first is scored once, in the first window that it is in; those behind the first window have at least length - stride
// tokens before them (a stride of the whole length leaves the first token of each window out).
struct SlidingWindow {
  int64_t length = 0;  // at least 2
  int64_t stride = 0;  // 1 to length
};

struct EvalOptions {
  int64_t batch = 8;                           // rows per forward
  int64_t logit_bytes_max = int64_t{1} << 28;  // f32 logits held at a time, per model
  ReferenceStates* kept = nullptr;  // where the reference's states come from, or go to; not with a window
  std::optional<SlidingWindow> window = std::nullopt;  // rows are run whole without
  int64_t context = 1;  // tokens with fewer before them in their row are not scored
};

struct KlTail {
  double median = 0, p90 = 0, p99 = 0, p999 = 0, max = 0;
};

// Of the predicted positions of one row, or window of a row: sums, and scores one by one.
struct RowScore {
  double negative_log_likelihood = 0;
  double kl = 0;
  int64_t agreed = 0;
  int64_t positions = 0;
  int64_t context = 1;                    // tokens before the first of them, each further one has one more
  std::vector<float> likelihood_at = {};  // negative logarithms
  std::vector<float> kl_at = {};
};

// Means over the positions with `low` to `high` tokens of context.
struct PositionScore {
  int64_t low = 0, high = 0;
  int64_t positions = 0;
  double negative_log_likelihood = 0;
  double kl = 0;  // 0 without a reference
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
  std::vector<RowScore> rows;  // those of two tokens and more, in order; of sliding windows each
  // By how much context there is: 1 token, 2 and 3, 4 to 7, and so on; parts without positions are left out.
  std::vector<PositionScore> by_position() const;
};

// Adds the scores of positions [0, count) of one row: log q [count, vocabulary] against `targets` [count] and, where it is defined, log p;
// all f32 natural logarithms of probabilities. Takes log_q apart.
void add_scores(at::Tensor log_q, const at::Tensor& log_p, const at::Tensor& targets, RowScore& row);

// "no row has two tokens": why there is nothing to predict.
std::string too_short_for(int64_t context);
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
