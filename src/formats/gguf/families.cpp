#include "formats/gguf/families.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

namespace gramian::gguf {
namespace {

// In the order of Family's members: experts, interleaved, norms_plus_one, key_length.
constexpr Family kFamilies[] = {{"llama", "llama", "LlamaForCausalLM", false, true, false, false},
                                {"mistral", "llama", "MistralForCausalLM", false, true, false, false},
                                {"mixtral", "llama", "MixtralForCausalLM", true, true, false, false},
                                {"qwen2", "qwen2", "Qwen2ForCausalLM", false, false, false, false},
                                {"qwen2_moe", "qwen2moe", "Qwen2MoeForCausalLM", true, false, false, false},
                                {"qwen3", "qwen3", "Qwen3ForCausalLM", false, false, false, true},
                                {"qwen3_moe", "qwen3moe", "Qwen3MoeForCausalLM", true, false, false, true},
                                {"gemma", "gemma", "GemmaForCausalLM", false, false, true, true},
                                {"gemma2", "gemma2", "Gemma2ForCausalLM", false, false, true, true},
                                {"gemma3_text", "gemma3", "Gemma3ForCausalLM", false, false, true, true},
                                {"phi3", "phi3", "Phi3ForCausalLM", false, false, false, false}};

}  // namespace

const Family* family_of_type(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (model_type == family.model_type) return &family;
  }
  return nullptr;
}

const Family* family_of_architecture(std::string_view architecture, bool experts) {
  for (const Family& family : kFamilies) {
    if (architecture == family.architecture && experts == family.experts) return &family;
  }
  return nullptr;
}

std::vector<const char*> known_model_types() {
  std::vector<const char*> names;
  for (const Family& family : kFamilies) names.push_back(family.model_type);
  return names;
}

std::vector<float> llama3_factors(const nlohmann::ordered_json& rope, double theta, int64_t head) {
  const double factor = rope.value("factor", 8.0), low = rope.value("low_freq_factor", 1.0),
               high = rope.value("high_freq_factor", 4.0);
  const auto original = static_cast<double>(rope.value("original_max_position_embeddings", int64_t{8192}));
  std::vector<float> factors;
  for (int64_t i = 0; i < head; i += 2) {
    const double wavelength =
        2 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / static_cast<double>(head));
    const double smooth = (original / wavelength - low) / (high - low);
    factors.push_back(static_cast<float>(wavelength < original / high ? 1
                                         : wavelength > original / low
                                             ? factor
                                             : 1 / ((1 - smooth) / factor + smooth)));
  }
  return factors;
}

}  // namespace gramian::gguf
