// Saved documents come from anywhere: values read with their type, size and range checked.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/json.h"

namespace gramian {

inline constexpr double kNumberMax = 1e18;
inline constexpr size_t kNameMax = 1000, kTextMax = 100'000;

// A value of a document and the way to it, for messages. What does not fit throws corrupt_data naming `where` and the way.
class Field {
 public:
  using Json = nlohmann::ordered_json;

  Field(const Json& value, std::string path, const std::string& where)
      : value_(value), path_(std::move(path)), where_(where) {}

  // Nothing when the key is missing or null.
  std::optional<Field> find(const std::string& key) const {
    if (!value_.is_object()) fail("an object");
    const auto found = value_.find(key);
    if (found == value_.end() || found->is_null()) return std::nullopt;
    return Field(*found, (path_.empty() ? "" : path_ + ".") + key, where_);
  }
  Field at(const std::string& key) const {
    std::optional<Field> found = find(key);
    if (!found) refuse((path_.empty() ? "" : path_ + ".") + key + " is missing");
    return *found;
  }
  double number(double low = 0, double high = kNumberMax) const {
    if (!value_.is_number()) fail("a number");
    const double number = value_.get<double>();
    if (!(number >= low && number <= high)) fail(str("a number from ", low, " to ", high));
    return number;
  }
  bool null() const { return value_.is_null(); }
  int64_t integer(int64_t low = 0) const {
    if (!value_.is_number_integer()) fail("an integer");
    const double number = value_.get<double>();
    if (number < static_cast<double>(low) || number > 1e15) fail(str("an integer from ", low, " to 1e15"));
    return value_.get<int64_t>();
  }
  std::string text(size_t bytes_max = kNameMax) const {
    if (!value_.is_string()) fail("a text");
    const auto& text = value_.get_ref<const std::string&>();
    if (text.size() > bytes_max) refuse(str(path_, ": ", text.size(), " bytes, at most ", bytes_max));
    return text;
  }
  std::vector<Field> list(size_t count_max) const {
    if (!value_.is_array()) fail("a list");
    refuse_many(count_max);
    std::vector<Field> entries;
    for (const Json& entry : value_)
      entries.emplace_back(entry, str(path_, "[", entries.size(), "]"), where_);
    return entries;
  }
  // The members that are not null, in order.
  std::vector<std::pair<std::string, Field>> members(size_t count_max) const {
    if (!value_.is_object()) fail("an object");
    refuse_many(count_max);
    std::vector<std::pair<std::string, Field>> members;
    for (const auto& [key, value] : value_.items()) {
      if (key.size() > kNameMax) refuse(str(path_, ": a key of ", key.size(), " bytes"));
      if (!value.is_null()) members.emplace_back(key, Field(value, path_ + "." + key, where_));
    }
    return members;
  }
  [[noreturn]] void fail(const std::string& expected) const {
    std::string found = value_.is_structured() ? value_.type_name() : quote_name(value_.dump());
    if (value_.is_string()) found = quote_name(value_.get_ref<const std::string&>());
    refuse(str(path_.empty() ? "the document" : path_, ": expected ", expected, ", found ", found));
  }

 private:
  void refuse_many(size_t count_max) const {
    if (value_.size() > count_max) refuse(str(path_, ": ", value_.size(), " entries, at most ", count_max));
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::corrupt_data, where_, what,
                "a page is made from what gramian demo --json or gramian quantize of this version writes");
  }

  const Json& value_;
  std::string path_;
  const std::string& where_;
};

}  // namespace gramian
