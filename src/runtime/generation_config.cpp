#include "runtime/generation_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/json.h"
#include "formats/model_files.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

// Settings that change what is generated, with the number at which they do nothing (as null, false and [] do).
struct Unbuilt {
  const char* key;
  double neutral;
};
constexpr Unbuilt kUnbuilt[] = {{"num_beams", 1},
                                {"num_beam_groups", 1},
                                {"penalty_alpha", 0},
                                {"min_p", 0},
                                {"typical_p", 1},
                                {"top_h", 0},
                                {"epsilon_cutoff", 0},
                                {"eta_cutoff", 0},
                                {"no_repeat_ngram_size", 0},
                                {"encoder_no_repeat_ngram_size", 0},
                                {"encoder_repetition_penalty", 1},
                                {"min_length", 0},
                                {"min_new_tokens", 0},
                                {"max_time", 0},
                                {"guidance_scale", 1},
                                {"bad_words_ids", 0},
                                {"sequence_bias", 0},
                                {"suppress_tokens", 0},
                                {"begin_suppress_tokens", 0},
                                {"forced_bos_token_id", -1},
                                {"forced_eos_token_id", -1},
                                {"exponential_decay_length_penalty", 0},
                                {"stop_strings", 0},
                                {"watermarking_config", 0}};

bool does_nothing(const Json& value, double neutral) {
  if (value.is_number()) return value.get<double>() == neutral;
  return value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty());
}

double number_in(const ConfigReader& config, const std::string& key, double fallback, double low,
                 double high) {
  const double value = config.number_or(key, fallback);
  if (!(value >= low && value <= high))
    config.fail(key, str("must lie in ", low, "..", high, ", found ", value));
  return value;
}

// A token id or a list of them.
std::vector<int64_t> token_ids(const ConfigReader& config, const std::string& key) {
  if (!config.has(key)) return {};
  const Json& value = config.json().at(key);
  std::vector<int64_t> ids;
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0)
      config.fail(key, str("must be a token id or a list of them, found ", value.dump()));
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

}  // namespace

GenerationConfig read_generation_config(const std::filesystem::path& folder, const ConfigReader& config) {
  constexpr const char* kName = "generation_config.json";
  const std::string where = model_text_place(folder, kName);
  const std::optional<std::string> text = model_text(folder, kName);
  const Json json = text ? parse_json(*text, where) : Json::object();
  if (!json.is_object()) throw Error(ErrorKind::corrupt_data, where, "expected an object");
  const ConfigReader file(json, where);
  GenerationConfig result;
  result.do_sample = file.boolean_or("do_sample", false);
  result.temperature = number_in(file, "temperature", result.temperature, 0, 1e6);
  result.top_k = file.integer_or("top_k", result.top_k, 0);
  result.top_p = number_in(file, "top_p", result.top_p, 0, 1);
  result.repetition_penalty = number_in(file, "repetition_penalty", result.repetition_penalty, 1e-6, 1e6);
  result.eos = token_ids(file, "eos_token_id");
  if (result.eos.empty()) result.eos = token_ids(config, "eos_token_id");
  for (const auto& [key, neutral] : kUnbuilt) {
    if (json.contains(key) && !does_nothing(json.at(key), neutral)) result.ignored.emplace_back(key);
  }
  return result;
}

SamplerOptions sampler_options(const GenerationConfig& config, const SamplerOverrides& overrides) {
  return {.temperature = overrides.temperature.value_or(config.do_sample ? config.temperature : 0.0),
          .top_k = overrides.top_k.value_or(config.top_k),
          .top_p = overrides.top_p.value_or(config.top_p),
          .repetition_penalty = overrides.repetition_penalty.value_or(config.repetition_penalty),
          .seed = overrides.seed};
}

}  // namespace gramian
