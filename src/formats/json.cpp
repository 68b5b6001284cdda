#include "formats/json.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "formats/json_walker.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

// A pointer that tells how far the parser has read: its events carry no position.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  Cursor operator++(int) {
    Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

class TreeBuilder : public JsonWalker {
 public:
  Json take() { return std::move(root_); }

 private:
  void on_open(bool is_object) override {
    open_.push_back(insert(is_object ? Json::object() : Json::array()));
  }
  void on_close() override { open_.pop_back(); }
  void on_key(std::string& key) override { key_ = std::move(key); }
  void on_scalar(Json&& value) override { insert(std::move(value)); }

  // Appends without the linear search of ordered_json's own insertion; the walker has refused duplicates.
  Json* insert(Json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      auto& array = parent.get_ref<Json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    auto& object = parent.get_ref<Json::object_t&>();
    object.emplace_back(std::move(key_), std::move(value));
    return &object.back().second;
  }

  Json root_;
  // Stable: a container grows only while it is the innermost open one.
  std::vector<Json*> open_;
  std::string key_;
};

// nlohmann's text without its class name and position.
std::string bare(std::string text) {
  const size_t bracket = text.find("] ");
  if (text.starts_with("[json.exception") && bracket != std::string::npos) text.erase(0, bracket + 2);
  const size_t colon = text.find(": ");
  if (text.starts_with("parse error at") && colon != std::string::npos) text.erase(0, colon + 2);
  constexpr size_t kLengthMax = 300;
  if (text.size() > kLengthMax) text = text.substr(0, kLengthMax) + "...";
  return text;
}

}  // namespace

void JsonWalker::walk(std::string_view text, const std::string& where, size_t depth_max) {
  text_ = text;
  reached_ = text.data();
  where_ = where;
  depth_max_ = depth_max;
  keys_.clear();
  // nlohmann takes a NUL for the end of the input and would not look at what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    reached_ = text.data() + nul;
    fail("a NUL byte");
  }
  nlohmann::json_sax<Json>* events = this;
  Json::sax_parse(Cursor(text.data(), &reached_), Cursor(text.data() + text.size(), &reached_), events);
}

void JsonWalker::fail(const std::string& what, const std::string& hint) const {
  const std::string_view before = text_.substr(0, static_cast<size_t>(reached_ - text_.data()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? before.size() : before.size() - newline - 1;
  throw Error(ErrorKind::corrupt_data, where_, str("JSON line ", line, ", column ", column, ": ", what),
              hint);
}

void JsonWalker::open(bool is_object) {
  if (keys_.size() >= depth_max_) fail(str("nested deeper than ", depth_max_, " levels"));
  keys_.emplace_back();
  on_open(is_object);
}

void JsonWalker::close() {
  keys_.pop_back();
  on_close();
}

bool JsonWalker::key(std::string& name) {
  if (!keys_.back().insert(name).second) fail("duplicate key " + quote_name(name));
  on_key(name);
  return true;
}

bool JsonWalker::null() {
  on_scalar(Json());
  return true;
}

bool JsonWalker::boolean(bool value) {
  on_scalar(Json(value));
  return true;
}

bool JsonWalker::number_integer(Json::number_integer_t value) {
  on_scalar(Json(value));
  return true;
}

bool JsonWalker::number_unsigned(Json::number_unsigned_t value) {
  on_scalar(Json(value));
  return true;
}

bool JsonWalker::number_float(Json::number_float_t value, const std::string&) {
  on_scalar(Json(value));
  return true;
}

bool JsonWalker::string(std::string& value) {
  on_scalar(Json(std::move(value)));
  return true;
}

bool JsonWalker::binary(Json::binary_t&) { fail("binary value"); }

bool JsonWalker::start_object(size_t) {
  open(true);
  return true;
}

bool JsonWalker::end_object() {
  close();
  return true;
}

bool JsonWalker::start_array(size_t) {
  open(false);
  return true;
}

bool JsonWalker::end_array() {
  close();
  return true;
}

bool JsonWalker::parse_error(size_t position, const std::string&, const nlohmann::detail::exception& fault) {
  // Where the bad token ended; the cursor may stand one byte further.
  reached_ = text_.data() + std::min(position, text_.size());
  fail("bad JSON: " + bare(fault.what()));
}

nlohmann::ordered_json parse_json(const std::string& text, const std::string& where) {
  constexpr size_t kDepthMax = 128;
  TreeBuilder builder;
  builder.walk(text, where, kDepthMax);
  return builder.take();
}

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

std::string quote_name(std::string_view name) {
  constexpr size_t kLengthMax = 200;
  constexpr char kHex[] = "0123456789abcdef";
  std::string text = "\"";
  for (const char c : name.substr(0, kLengthMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      text += c;
    }
  }
  return text + (name.size() > kLengthMax ? "...\"" : "\"");
}

std::string quote_names(const std::vector<std::string>& names, size_t count_max) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), count_max); ++i)
    text += (i == 0 ? "" : ", ") + quote_name(names[i]);
  if (names.size() > count_max) text += str(" and ", names.size() - count_max, " more");
  return text;
}

}  // namespace gramian
