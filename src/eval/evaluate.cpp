#include "eval/evaluate.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include "base/interrupt.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// Logits -> log-probabilities, in place.
at::Tensor log_probabilities(at::Tensor logits) {
  logits.sub_(logits.logsumexp(-1, true));
  return logits;
}

void append(std::vector<float>& values, const at::Tensor& more) {
  const at::Tensor plain = more.to(at::kFloat).contiguous();
  values.insert(values.end(), plain.const_data_ptr<float>(), plain.const_data_ptr<float>() + plain.numel());
}

// The smallest value that a share p of the sorted ones does not exceed.
double quantile(const std::vector<float>& sorted, double p) {
  const auto rank = static_cast<size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

KlTail tail_of(const std::vector<RowScore>& rows) {
  std::vector<float> all;
  for (const RowScore& row : rows) all.insert(all.end(), row.kl_at.begin(), row.kl_at.end());
  std::sort(all.begin(), all.end());
  return {quantile(all, 0.5), quantile(all, 0.9), quantile(all, 0.99), quantile(all, 0.999), all.back()};
}

EvalResult summarize(std::vector<RowScore> scores, const ResidentModel& model,
                     const ResidentModel* reference) {
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
    result.tail = tail_of(scores);
  }
  result.rows = std::move(scores);
  return result;
}

// Tokens [begin, end) of a row are run, those from `first` on are scored.
struct Span {
  size_t row;
  int64_t begin, end, first;
  TokenRow tokens(const std::vector<TokenRow>& rows) const {
    return {rows[row].begin() + begin, rows[row].begin() + end};
  }
};

std::vector<Span> spans_of(const std::vector<TokenRow>& rows, int64_t context,
                           const std::optional<SlidingWindow>& window) {
  std::vector<Span> spans;
  for (size_t row = 0; row < rows.size(); ++row) {
    const auto length = static_cast<int64_t>(rows[row].size());
    const int64_t most = window ? window->length : length;
    for (int64_t begin = 0, scored = context; scored < length; begin += window ? window->stride : length) {
      const int64_t end = std::min(begin + most, length), first = std::max(scored, begin + 1);
      if (first < end) spans.push_back({row, begin, end, first});
      scored = end;
    }
  }
  return spans;
}

// The reference's states of a batch.
at::Tensor states_of(ResidentModel& reference, const std::vector<TokenRow>& batch, int64_t tokens,
                     ReferenceStates* kept) {
  if (kept != nullptr && kept->stored()) return kept->next(tokens);
  at::Tensor states = reference.states(batch);
  if (kept != nullptr) kept->add(states);
  return states;
}

}  // namespace

void add_scores(at::Tensor log_q, const at::Tensor& log_p, const at::Tensor& targets, RowScore& row) {
  const at::Tensor likelihood = log_q.gather(-1, targets.unsqueeze(-1)).squeeze(-1).neg();
  row.negative_log_likelihood += likelihood.sum(at::kDouble).item<double>();
  append(row.likelihood_at, likelihood);
  row.positions += targets.size(0);
  if (!log_p.defined()) return;
  row.agreed += log_p.argmax(-1).eq(log_q.argmax(-1)).sum().item<int64_t>();
  log_q.neg_().add_(log_p);  // log p - log q
  const at::Tensor kl = log_q.mul_(log_p.exp()).sum({-1}, false, at::kDouble);
  row.kl += kl.sum().item<double>();
  append(row.kl_at, kl);
}

std::vector<PositionScore> EvalResult::by_position() const {
  std::vector<PositionScore> parts;
  for (const RowScore& row : rows) {
    for (size_t i = 0; i < row.likelihood_at.size(); ++i) {
      const int64_t context = row.context + static_cast<int64_t>(i);
      const auto part = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(context)) - 1);
      if (parts.size() <= part) parts.resize(part + 1);
      ++parts[part].positions;
      parts[part].negative_log_likelihood += row.likelihood_at[i];
      if (!row.kl_at.empty()) parts[part].kl += row.kl_at[i];
    }
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    PositionScore& score = parts[part];
    score.low = int64_t{1} << part;
    score.high = 2 * score.low - 1;
    score.negative_log_likelihood /= static_cast<double>(score.positions);
    score.kl /= static_cast<double>(score.positions);
  }
  std::erase_if(parts, [](const PositionScore& score) { return score.positions == 0; });
  return parts;
}

std::string too_short_for(int64_t context) {
  return context == 1
             ? std::string("no row has two tokens")
             : str("no row has more than the ", context, " tokens that stand before the first scored one");
}

std::vector<TokenRow> usable_rows(const std::vector<TokenRow>& rows, int64_t context) {
  std::vector<TokenRow> usable;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(usable),
               [&](const TokenRow& row) { return static_cast<int64_t>(row.size()) > context; });
  if (usable.empty()) throw Error(ErrorKind::invalid_argument, "evaluation rows", too_short_for(context));
  return usable;
}

std::vector<EvalResult> evaluate_all(const std::vector<ResidentModel*>& models, ResidentModel* reference,
                                     const std::vector<TokenRow>& rows, const EvalOptions& options,
                                     Log& log) {
  const auto start = std::chrono::steady_clock::now();
  const tensor::InferenceScope inference;
  const int64_t vocab = models[0]->model().spec().vocab;
  const auto refuse_other = [&](const ResidentModel* other, const char* what) {
    if (other == nullptr || other->model().spec().vocab == vocab) return;
    throw Error(ErrorKind::invalid_argument, what,
                str("vocabulary of ", other->model().spec().vocab, ", the model has ", vocab),
                "compare models with one tokenizer");
  };
  for (const ResidentModel* model : models) refuse_other(model, model->model().checkpoint().folder().c_str());
  refuse_other(reference, "--reference");
  const std::vector<TokenRow> usable = usable_rows(rows, options.context);
  GRAMIAN_CHECK(options.kept == nullptr || !options.window, "states of windows are not kept");
  const std::vector<Span> spans = spans_of(usable, options.context, options.window);
  const int64_t chunk_max = std::max<int64_t>(1, options.logit_bytes_max / (vocab * 4));
  std::vector<std::vector<RowScore>> scores(models.size());
  Progress progress(log, options.window ? "windows" : "rows", static_cast<int64_t>(spans.size()));

  for (size_t begin = 0; begin < spans.size(); begin += static_cast<size_t>(options.batch)) {
    const size_t end = std::min(begin + static_cast<size_t>(options.batch), spans.size());
    std::vector<TokenRow> batch;
    for (size_t i = begin; i < end; ++i) batch.push_back(spans[i].tokens(usable));
    throw_if_interrupted();
    const at::Tensor ids = models[0]->model().pack_rows(batch);
    std::vector<at::Tensor> states;
    for (ResidentModel* model : models) states.push_back(model->states(batch));
    at::Tensor reference_states;
    if (reference != nullptr) reference_states = states_of(*reference, batch, ids.size(0), options.kept);
    int64_t offset = 0;
    for (size_t i = begin; i < end; ++i) {
      const Span& span = spans[i];
      const int64_t context = span.first - span.begin, predicted = span.end - span.first;
      for (auto& of_model : scores) of_model.emplace_back().context = context;
      // Even parts: each one widens the whole head.
      const int64_t parts = (predicted + chunk_max - 1) / chunk_max;
      const int64_t chunk = (predicted + parts - 1) / parts;
      for (int64_t done = 0; done < predicted; done += chunk) {
        const int64_t count = std::min(chunk, predicted - done), at = context - 1 + done;
        const at::Tensor log_p =
            reference == nullptr
                ? at::Tensor()
                : log_probabilities(reference->logits(reference_states.narrow(0, offset + at, count)));
        for (size_t m = 0; m < models.size(); ++m) {
          add_scores(log_probabilities(models[m]->logits(states[m].narrow(0, offset + at, count))), log_p,
                     ids.narrow(0, offset + at + 1, count), scores[m].back());
        }
      }
      offset += span.end - span.begin;
      progress.update(static_cast<double>(scores[0].size()));
    }
  }
  if (options.kept != nullptr) options.kept->save();
  std::vector<EvalResult> results;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (size_t m = 0; m < models.size(); ++m) {
    results.push_back(summarize(std::move(scores[m]), *models[m], reference));
    results.back().seconds = seconds;
  }
  return results;
}

EvalResult evaluate(ResidentModel& model, ResidentModel* reference, const std::vector<TokenRow>& rows,
                    const EvalOptions& options, Log& log) {
  return std::move(evaluate_all({&model}, reference, rows, options, log)[0]);
}

}  // namespace gramian
