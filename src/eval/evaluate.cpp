#include "eval/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/interrupt.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// Sums over the predicted positions of one row.
struct RowScore {
  double negative_log_likelihood = 0;
  double kl = 0;
  int64_t agreed = 0;
  int64_t positions = 0;
};

// Logits -> log-probabilities, in place.
at::Tensor log_probabilities(at::Tensor logits) {
  logits.sub_(logits.logsumexp(-1, true));
  return logits;
}

// Scores positions [0, count) of one row's states against `targets` [count].
void score(const ResidentModel& model, const at::Tensor& states, const ResidentModel* reference,
           const at::Tensor& reference_states, const at::Tensor& targets, RowScore& row) {
  at::Tensor log_q = log_probabilities(model.logits(states));
  row.negative_log_likelihood -= log_q.gather(-1, targets.unsqueeze(-1)).sum(at::kDouble).item<double>();
  row.positions += targets.size(0);
  if (reference == nullptr) return;
  at::Tensor log_p = log_probabilities(reference->logits(reference_states));
  row.agreed += log_p.argmax(-1).eq(log_q.argmax(-1)).sum().item<int64_t>();
  log_q.neg_().add_(log_p);  // log p - log q
  row.kl += log_q.mul_(log_p.exp_()).sum(at::kDouble).item<double>();
}

std::vector<TokenRow> usable_rows(const std::vector<TokenRow>& rows) {
  std::vector<TokenRow> usable;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(usable),
               [](const TokenRow& row) { return row.size() >= 2; });
  if (usable.empty()) throw Error(ErrorKind::invalid_argument, "evaluation rows", "no row has two tokens");
  return usable;
}

}  // namespace

EvalResult evaluate(ResidentModel& model, ResidentModel* reference, const std::vector<TokenRow>& rows,
                    const EvalOptions& options, Log& log) {
  const auto start = std::chrono::steady_clock::now();
  const tensor::InferenceScope inference;
  const int64_t vocab = model.model().spec().vocab;
  if (reference != nullptr && reference->model().spec().vocab != vocab) {
    throw Error(ErrorKind::invalid_argument, "--reference",
                str("vocabulary of ", reference->model().spec().vocab, ", the model has ", vocab),
                "compare models with one tokenizer");
  }
  const std::vector<TokenRow> usable = usable_rows(rows);
  const int64_t chunk_max = std::max<int64_t>(1, options.logit_bytes_max / (vocab * 4));
  std::vector<RowScore> scores;
  Progress progress(log, "rows", static_cast<int64_t>(usable.size()));

  for (size_t begin = 0; begin < usable.size(); begin += static_cast<size_t>(options.batch)) {
    const size_t end = std::min(begin + static_cast<size_t>(options.batch), usable.size());
    const std::vector<TokenRow> batch(usable.begin() + static_cast<int64_t>(begin),
                                      usable.begin() + static_cast<int64_t>(end));
    throw_if_interrupted();
    const at::Tensor ids = model.model().pack_rows(batch);
    const at::Tensor states = model.states(batch);
    const at::Tensor reference_states = reference != nullptr ? reference->states(batch) : at::Tensor();
    int64_t offset = 0;
    for (const TokenRow& row : batch) {
      RowScore& sums = scores.emplace_back();
      const int64_t predicted = static_cast<int64_t>(row.size()) - 1;
      // Even parts: each one widens the whole head.
      const int64_t parts = (predicted + chunk_max - 1) / chunk_max;
      const int64_t chunk = (predicted + parts - 1) / parts;
      for (int64_t at = 0; at < predicted; at += chunk) {
        const int64_t count = std::min(chunk, predicted - at);
        score(model, states.narrow(0, offset + at, count), reference,
              reference != nullptr ? reference_states.narrow(0, offset + at, count) : at::Tensor(),
              ids.narrow(0, offset + at + 1, count), sums);
      }
      offset += predicted + 1;
      progress.update(static_cast<double>(scores.size()));
    }
  }

  EvalResult result;
  double likelihood = 0;
  int64_t agreed = 0;
  std::vector<double> kl, weights;
  for (const RowScore& row : scores) {
    likelihood += row.negative_log_likelihood;
    result.tokens += row.positions;
    agreed += row.agreed;
    kl.push_back(row.kl / static_cast<double>(row.positions));
    weights.push_back(static_cast<double>(row.positions));
  }
  const auto positions = static_cast<double>(result.tokens);
  result.perplexity = std::exp(likelihood / positions);
  if (!std::isfinite(result.perplexity)) {
    throw Error(ErrorKind::numerical, model.model().checkpoint().folder().string(),
                "the model's logits are not finite on these rows",
                "try --dtype float32; if it stays, the weights are damaged");
  }
  if (reference != nullptr) {
    result.kl = mean_with_ci95(kl, weights);
    if (!std::isfinite(result.kl->mean)) {
      throw Error(ErrorKind::numerical, reference->model().checkpoint().folder().string(),
                  "the reference's logits are not finite on these rows",
                  "try --dtype float32; if it stays, the weights are damaged");
    }
    result.top1_agreement = static_cast<double>(agreed) / positions;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace gramian
