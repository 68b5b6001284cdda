// generation_config.json: how a model's makers want its next tokens chosen, and where it stops.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/config.h"
#include "runtime/sampler.h"

namespace gramian {

struct GenerationConfig {
  // What transformers 5.23 would use: `do_sample` false or missing is greedy; with it, what the file leaves out is
  // temperature 1, top-k 50, top-p 1.
  bool do_sample = false;
  double temperature = 1.0;
  int64_t top_k = 50;
  double top_p = 1.0;
  double repetition_penalty = 1.0;
  // Ids that end a text; config.json's where this file names none. May be empty.
  std::vector<int64_t> eos;
  // Settings of the file that would change the text and are not built.
  std::vector<std::string> ignored;
};

// Reads <folder>/generation_config.json, which may be missing. `config` is the model's config.json. Throws corrupt_data.
GenerationConfig read_generation_config(const std::filesystem::path& folder, const ConfigReader& config);

// What a user asks for; without a value the model's own setting counts.
struct SamplerOverrides {
  std::optional<double> temperature = {};
  std::optional<int64_t> top_k = {};
  std::optional<double> top_p = {};
  std::optional<double> repetition_penalty = {};
  uint64_t seed = 0;
};
SamplerOptions sampler_options(const GenerationConfig& config, const SamplerOverrides& overrides);

}  // namespace gramian
