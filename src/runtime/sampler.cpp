#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"

namespace gramian {
namespace {

void refuse_unusable(std::span<const float> logits) {
  const auto bad =
      std::find_if(logits.begin(), logits.end(), [](float x) { return std::isnan(x) || x == INFINITY; });
  const bool empty = std::all_of(logits.begin(), logits.end(), [](float x) { return x == -INFINITY; });
  if (bad == logits.end() && !empty) return;
  const std::string where = empty ? "logits" : str("logits, token id ", bad - logits.begin());
  const char* what = empty ? "all are -infinity" : std::isnan(*bad) ? "NaN" : "infinity";
  throw Error(ErrorKind::numerical, where, what, "the model is damaged or overflows; try --dtype float32");
}

}  // namespace

std::string describe(const SamplerOptions& options) {
  std::string text = "greedy";
  if (options.temperature > 0) {
    text = str("temperature ", options.temperature);
    if (options.top_k > 0) text += str(", top-k ", options.top_k);
    if (options.top_p < 1) text += str(", top-p ", options.top_p);
    text += str(", seed ", options.seed);
  }
  if (options.repetition_penalty != 1) text += str(", repetition penalty ", options.repetition_penalty);
  return text;
}

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {
  GRAMIAN_CHECK(options.temperature >= 0 && options.top_k >= 0 && options.top_p >= 0 && options.top_p <= 1 &&
                    options.repetition_penalty > 0,
                describe(options));
}

int64_t Sampler::operator()(std::span<const float> logits, std::span<const int64_t> seen) {
  GRAMIAN_CHECK(!logits.empty(), "no logits");
  refuse_unusable(logits);
  penalize(logits, seen);
  const auto best =
      std::max_element(candidates_.begin(), candidates_.end(),
                       [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
  if (options_.temperature == 0) return best->id;
  const double largest = best->score;
  keep_top_k();
  for (Candidate& candidate : candidates_)
    candidate.score = std::exp((candidate.score - largest) / options_.temperature);
  keep_top_p();
  return draw();
}

// Fills the candidates. A token that was seen twice is penalized once.
void Sampler::penalize(std::span<const float> logits, std::span<const int64_t> seen) {
  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id) candidates_.push_back({logits[id], static_cast<int64_t>(id)});
  if (options_.repetition_penalty == 1) return;
  for (const int64_t id : seen) {
    const double logit = logits[static_cast<size_t>(id)];
    candidates_[static_cast<size_t>(id)].score =
        logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
  }
}

void Sampler::keep_top_k() {
  const auto k = static_cast<size_t>(options_.top_k);
  if (k == 0 || k >= candidates_.size()) return;
  std::vector<double> scores;
  scores.reserve(candidates_.size());
  for (const Candidate& candidate : candidates_) scores.push_back(candidate.score);
  const auto place = scores.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(scores.begin(), place, scores.end(), std::greater<>());
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.score < *place; });
}

void Sampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.id < b.id;
  });
  double total = 0, mass = 0;
  for (const Candidate& candidate : candidates_) total += candidate.score;
  size_t kept = 0;
  do {
    mass += candidates_[kept++].score;
  } while (kept < candidates_.size() && mass < options_.top_p * total);
  candidates_.resize(kept);
}

int64_t Sampler::draw() {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.score;
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  int64_t last = 0;
  for (const Candidate& candidate : candidates_) {
    if (candidate.score == 0) continue;
    if (left < candidate.score) return candidate.id;
    left -= candidate.score;
    last = candidate.id;
  }
  return last;  // rounding left a crumb behind the last one
}

}  // namespace gramian
