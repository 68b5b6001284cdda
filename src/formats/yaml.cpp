#include "formats/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "formats/json.h"
#include "formats/tokenizer/unicode.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kBytesMax = size_t{1} << 20;
// yaml-cpp reads nested nodes by recursion.
constexpr size_t kDepthMax = 32;

// A number of the core schema, or null for other text.
Json number(const std::string& text) {
  const char* const end = text.data() + text.size();
  const char* begin = text.data();
  if (begin != end && *begin == '+') ++begin;
  if (begin == end || (*begin != '-' && *begin != '.' && (*begin < '0' || *begin > '9'))) return nullptr;
  int64_t whole = 0;
  const auto [rest, fault] = std::from_chars(begin, end, whole);
  if (fault == std::errc() && rest == end) return whole;
  // from_chars also knows "inf" and "nan", which no setting can be.
  if (text.find_first_not_of("+-.0123456789eE") != std::string::npos) return nullptr;
  double real = 0;
  const auto [behind, wrong] = std::from_chars(begin, end, real);
  return wrong == std::errc() && behind == end ? Json(real) : Json(nullptr);
}

Json plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  Json value = number(text);
  return value.is_null() ? Json(text) : value;
}

class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(const std::string& where) : where_(where) {}

  Json take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check(mark, "?", anchor);
    add(mark, "", nullptr);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse(mark, "aliases are not read"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check(mark, tag, anchor);
    // JSON's strings are UTF-8; escapes of lone surrogates are none.
    if (tokenizer::find_invalid_utf8(value) < value.size()) refuse(mark, "text that is not UTF-8");
    // yaml-cpp marks a quoted scalar with "!".
    add(mark, value, tag == "!" ? Json(value) : plain_scalar(value));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Json::array());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Json::object());
  }
  void OnMapEnd() override { close(); }

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& what) const {
    throw Error(ErrorKind::corrupt_data, where_,
                str(what, ", line ", mark.line + 1, ", column ", mark.column + 1));
  }

 private:
  // A map or sequence that is not complete.
  struct Level {
    Json value;
    bool has_key = false;
    std::string key;             // of the value that comes next
    std::set<std::string> keys;  // objects of ordered_json search linearly
  };

  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != 0) refuse(mark, "anchors are not read");
    if (!tag.empty() && tag != "?" && tag != "!") refuse(mark, "tags are not read");
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Json empty) {
    check(mark, tag, anchor);
    if (levels_.size() == kDepthMax) refuse(mark, str("nested deeper than ", kDepthMax));
    if (!levels_.empty() && levels_.back().value.is_object() && !levels_.back().has_key)
      refuse(mark, "a key that is no scalar");
    levels_.push_back({std::move(empty), false, "", {}});
  }

  void close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    put(std::move(value));
  }

  void add(const YAML::Mark& mark, const std::string& text, Json value) {
    if (levels_.empty() || levels_.back().value.is_array() || levels_.back().has_key)
      return put(std::move(value));
    Level& level = levels_.back();
    if (!level.keys.insert(text).second) refuse(mark, "the key " + quote_name(text) + " stands twice");
    level.key = text;
    level.has_key = true;
  }

  void put(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return;
    }
    Level& level = levels_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else {
      // Appended without a search: `keys` has seen that it is new.
      level.value.get_ref<Json::object_t&>().emplace_back(level.key, std::move(value));
      level.has_key = false;
    }
  }

  std::string where_;
  std::vector<Level> levels_;
  Json root_;
};

}  // namespace

Json parse_yaml(const std::string& text, const std::string& where) {
  if (text.size() > kBytesMax)
    throw Error(ErrorKind::corrupt_data, where,
                str("has ", text.size(), " bytes, at most ", kBytesMax, " are read"));
  Builder builder(where);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return nullptr;
    Json first = builder.take();
    if (parser.HandleNextDocument(builder))
      throw Error(ErrorKind::corrupt_data, where, "holds several documents, expected one");
    return first;
  } catch (const YAML::Exception& error) {
    builder.refuse(error.mark, "not YAML: " + error.msg);
  }
}

}  // namespace gramian
