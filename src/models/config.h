// config.json as the families read it: typed, with the file and the key in every complaint.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace gramian {

class ConfigReader {
 public:
  static constexpr int64_t kSizeMax = int64_t{1} << 31;
  // `where` is the file's name, for messages. Keeps a reference to `json`.
  ConfigReader(const nlohmann::ordered_json& json, std::string where)
      : json_(json), where_(std::move(where)) {}

  bool has(const std::string& key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  // An integer in [low, high]; throws corrupt_data naming the key. Products of two sizes below the default limit fit int64.
  int64_t integer(const std::string& key, int64_t low = 1, int64_t high = kSizeMax) const;
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t low = 1,
                     int64_t high = kSizeMax) const;
  double number(const std::string& key) const;
  double number_or(const std::string& key, double fallback) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;
  // The integers under `key`; nothing where it is missing or null. Another value `must be a list of WHAT`.
  std::optional<std::vector<int64_t>> integers(const std::string& key, const char* what = "integers") const;
  // The object under `key`; a null or missing one reads as empty.
  ConfigReader object(const std::string& key) const;
  const nlohmann::ordered_json& json() const { return json_; }
  const std::string& where() const { return where_; }
  [[noreturn]] void fail(const std::string& key, const std::string& what) const;

 private:
  const nlohmann::ordered_json& json_;
  std::string where_;
};

// The settings of a model's text part: the object under "text_config" of a multimodal file, else `config` itself.
ConfigReader text_config(const ConfigReader& config);

}  // namespace gramian
