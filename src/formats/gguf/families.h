// The model families that have names in GGUF, and what is their own there.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gramian::gguf {

struct Family {
  const char* model_type;    // config.json's
  const char* architecture;  // GGUF's
  const char* class_name;    // of config.json's `architectures`
  bool experts = false;      // its files hold mixtures
  bool interleaved = false;  // rows of q and k lie in rotary pairs
  bool norms_plus_one = false;
  bool key_length = false;  // always told
};

// nullptr: none.
const Family* family_of_type(std::string_view model_type);
// A file of this architecture, with or without experts. Where several types share it, the first.
const Family* family_of_architecture(std::string_view architecture, bool experts);
std::vector<const char*> known_model_types();

// What Llama 3's rotary scaling divides each of head / 2 frequencies by. `rope`: its fields of config.json.
std::vector<float> llama3_factors(const nlohmann::ordered_json& rope, double theta, int64_t head);

}  // namespace gramian::gguf
