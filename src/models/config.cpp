#include "models/config.h"

#include <cmath>

namespace gramian {

void ConfigReader::fail(const std::string& key, const std::string& what) const {
  throw Error(ErrorKind::corrupt_data, where_, str("'", key, "' ", what),
              "mend the configuration or fetch it again");
}

int64_t ConfigReader::integer(const std::string& key, int64_t low, int64_t high) const {
  if (!has(key)) fail(key, "is missing");
  const auto& value = json_.at(key);
  if (!value.is_number_integer()) fail(key, str("must be an integer, found ", value.dump()));
  const int64_t result = value.get<int64_t>();
  if (result < low || result > high)
    fail(key, str("must lie in ", low, "..", high, ", found ", value.dump()));
  return result;
}

int64_t ConfigReader::integer_or(const std::string& key, int64_t fallback, int64_t low, int64_t high) const {
  return has(key) ? integer(key, low, high) : fallback;
}

std::optional<std::vector<int64_t>> ConfigReader::integers(const std::string& key, const char* what) const {
  if (!has(key)) return std::nullopt;
  const auto& list = json_.at(key);
  if (!list.is_array()) fail(key, str("must be a list of ", what));
  std::vector<int64_t> values;
  for (const auto& value : list) {
    if (!value.is_number_integer()) fail(key, str("must be a list of ", what));
    values.push_back(value.get<int64_t>());
  }
  return values;
}

double ConfigReader::number(const std::string& key) const {
  if (!has(key)) fail(key, "is missing");
  const auto& value = json_.at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    fail(key, str("must be a number, found ", value.dump()));
  return value.get<double>();
}

double ConfigReader::number_or(const std::string& key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

bool ConfigReader::boolean_or(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  const auto& value = json_.at(key);
  if (!value.is_boolean()) fail(key, str("must be true or false, found ", value.dump()));
  return value.get<bool>();
}

std::string ConfigReader::text_or(const std::string& key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  const auto& value = json_.at(key);
  if (!value.is_string()) fail(key, str("must be a text, found ", value.dump()));
  return value.get<std::string>();
}

ConfigReader ConfigReader::object(const std::string& key) const {
  static const nlohmann::ordered_json kEmpty = nlohmann::ordered_json::object();
  if (!has(key)) return {kEmpty, where_};
  if (!json_.at(key).is_object()) fail(key, "must be an object");
  return {json_.at(key), where_};
}

ConfigReader text_config(const ConfigReader& config) {
  if (!config.has("text_config")) return config;
  return {config.object("text_config").json(), config.where() + ", text_config"};
}

}  // namespace gramian
