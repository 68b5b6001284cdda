// Chooses the next token from logits.
//
// The steps, in the order of transformers 5.23: repetition penalty; greedy choice at temperature 0, else temperature, top-k,
// top-p, and one draw from what is left. Random numbers come from the 64-bit Mersenne twister of the C++ standard (the same
// numbers on every platform): a draw takes the upper 53 bits of one number as a fraction of 2^53.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace gramian {

struct SamplerOptions {
  double temperature = 0.0;  // logits are divided by it; 0: greedy, where the two filters count for nothing
  int64_t top_k = 0;         // keeps the k largest logits and what equals the smallest of them; 0: all
  double top_p =
      1.0;  // keeps the smallest set of most likely tokens whose probabilities reach this, at least one
  double repetition_penalty =
      1.0;  // divides positive logits of seen tokens, multiplies negative ones (Keskar et al. 2019)
  uint64_t seed = 0;
};

// "greedy" or "temperature 0.7, top-k 20, ...", for logs.
std::string describe(const SamplerOptions& options);

class Sampler {
 public:
  // temperature >= 0, top_k >= 0, top_p in [0, 1], repetition_penalty > 0.
  explicit Sampler(const SamplerOptions& options);

  // logits [vocab] (vocab >= 1) of the next token after the tokens `seen`, which the penalty looks at; ids in [0, vocab).
  // Greedy takes the first of equal logits. Throws numerical when a logit is NaN or +infinity, or all are -infinity.
  int64_t operator()(std::span<const float> logits, std::span<const int64_t> seen);

 private:
  struct Candidate {
    double score;  // logit, then weight: exp of its distance to the largest
    int64_t id;
  };
  void penalize(std::span<const float> logits, std::span<const int64_t> seen);
  void keep_top_k();
  void keep_top_p();
  int64_t draw();

  SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
};

}  // namespace gramian
