#include <array>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "formats/gguf/gguf.h"
#include "formats/json.h"

namespace gramian::gguf {
namespace {

constexpr std::array<const char*, 13> kTypeNames = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                    "bool", "string", "array", "u64", "i64", "f64"};

}  // namespace

std::string type_name(const Value& value) {
  if (const auto* array = std::get_if<Array>(&value)) return str("array of ", kTypeNames[array->index()]);
  return kTypeNames[value.index()];
}

void Metadata::set(const std::string& key, Value value) {
  const auto [place, added] = places_.emplace(key, entries_.size());
  if (added) {
    entries_.emplace_back(key, std::move(value));
  } else {
    entries_[place->second].second = std::move(value);
  }
}

const Value* Metadata::find(const std::string& key) const {
  const auto found = places_.find(key);
  return found == places_.end() ? nullptr : &entries_[found->second].second;
}

void Metadata::refuse(const std::string& key, const Value& found, const std::string& expected) const {
  throw Error(ErrorKind::corrupt_data, where_,
              str("expected ", expected, " under the key ", quote_name(key), ", found ", type_name(found)),
              "convert the model again");
}

void Metadata::refuse(const std::string& key, const Value& found, const Value& expected) const {
  refuse(key, found, str("an ", type_name(expected)));
}

std::optional<int64_t> Metadata::integer(const std::string& key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  return std::visit(
      [&](const auto& held) -> int64_t {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          if (std::in_range<int64_t>(held)) return static_cast<int64_t>(held);
        }
        refuse(key, *value, std::string("an integer below 2^63"));
      },
      *value);
}

std::optional<double> Metadata::number(const std::string& key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  return std::visit(
      [&](const auto& held) -> double {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) return static_cast<double>(held);
        refuse(key, *value, std::string("a number"));
      },
      *value);
}

std::optional<bool> Metadata::boolean(const std::string& key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const bool* held = std::get_if<bool>(value)) return *held;
  refuse(key, *value, std::string("a bool"));
}

const std::string* Metadata::string(const std::string& key) const {
  const Value* value = find(key);
  if (value == nullptr) return nullptr;
  if (const auto* held = std::get_if<std::string>(value)) return held;
  refuse(key, *value, std::string("a string"));
}

}  // namespace gramian::gguf
