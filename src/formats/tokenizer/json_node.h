// A value inside tokenizer.json together with its place, so that every type or range error names both.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace gramian::tokenizer {

using Json = nlohmann::json;

// Vocabulary ids lie in [0, 2^31 - 1).
inline constexpr int64_t kMaxId = (int64_t{1} << 31) - 2;

// The only place where tokenizer.json is parsed. A tree with ordered keys is not used here: its objects
// search linearly, and a vocabulary is one object of a hundred thousand keys. Throws corrupt_data with line
// and column; duplicate keys are refused.
Json parse(const std::string& text, const std::string& where);

class JsonNode {
 public:
  // `value` may be null (absent); it must outlive the node. `path` is for messages, for example
  // "model.merges[3]".
  JsonNode(const Json* value, std::string file, std::string path);

  // Absent and JSON null are the same thing.
  bool has_value() const noexcept { return value_ != nullptr && !value_->is_null(); }
  const std::string& file() const noexcept { return file_; }
  const std::string& path() const noexcept { return path_; }
  const Json& json() const noexcept { return *value_; }

  // Member of an object; the node itself must be an object. The member may be absent.
  JsonNode operator[](const std::string& key) const;
  // Elements of an array.
  std::vector<JsonNode> items() const;
  const std::string& string() const;
  bool boolean() const;
  bool boolean_or(bool fallback) const { return has_value() ? boolean() : fallback; }
  // An integer in [0, kMaxId].
  int32_t id() const;
  // An integer in [0, max].
  int64_t count(int64_t max) const;
  // The string member "type" of an object.
  const std::string& type() const { return (*this)["type"].string(); }
  const JsonNode& require_array() const;
  const JsonNode& require_object() const;
  // A string of one code point.
  void require_character() const;

  // Error with kind corrupt_data naming the file and the path.
  Error corrupt(const std::string& what) const;
  // Error with kind unsupported naming the file, the path and what is not built.
  Error unsupported(const std::string& what) const;

 private:
  Error wrong_type(const char* expected) const;

  const Json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace gramian::tokenizer
