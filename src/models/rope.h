// Rotary position embedding (Su et al. 2021) and the scalings that checkpoints name in `rope_parameters` or
// `rope_scaling`: default, linear, dynamic, llama3, yarn, longrope.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/config.h"

namespace gramian {

struct RopeSpec {
  std::string type = "default";
  double theta = 10000.0;
  int64_t rotary_dim = 0;  // leading entries of a head that turn; even
  bool pairs = false;      // entries (2j, 2j + 1) turn together, otherwise (j, j + rotary_dim / 2)
  int64_t max_positions = 0;
  double factor = 1.0;
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_positions = 0;
  // yarn
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;
  // Multiplies cos and sin (yarn, longrope); 1 elsewhere.
  double attention_factor = 1.0;
  // What a factor with mscale_all_dim makes of the sharpness of scores (DeepSeek multiplies theirs by its square); 1 without.
  double mscale_all = 1.0;
  // longrope, rotary_dim / 2 entries each
  std::vector<double> short_factor{};
  std::vector<double> long_factor{};
};

// Reads both the nested (`rope_parameters`) and the older flat form. Throws unsupported for an unknown type.
RopeSpec read_rope(const ConfigReader& config, int64_t head_dim);

// Angular frequencies [rotary_dim / 2] for a row of `length` tokens (dynamic and longrope depend on it).
std::vector<float> rope_frequencies(const RopeSpec& spec, int64_t length);

struct RopeTable {
  at::Tensor cos;  // f32 [length, rotary_dim / 2]
  at::Tensor sin;
  bool pairs = false;
};
// Positions [begin, begin + length) of a row that holds `whole` tokens, which the frequencies are chosen for.
struct RopeSpan {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t whole = 0;
};
RopeTable rope_table(const RopeSpec& spec, const RopeSpan& span);
inline RopeTable rope_table(const RopeSpec& spec, int64_t length) {
  return rope_table(spec, {.begin = 0, .length = length, .whole = length});
}

// x [B, heads, L, d]; the entries of pair j turn by position · frequency_j. Computed in f32, returned in x's type.
at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table);

}  // namespace gramian
