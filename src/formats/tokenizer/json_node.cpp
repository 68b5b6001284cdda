#include "formats/tokenizer/json_node.h"

#include <utility>

#include "formats/tokenizer/unicode.h"

namespace gramian::tokenizer {
namespace {

// nlohmann's parser lets the last of two equal keys win, so the keys of each open object are counted and
// compared with the size of the finished object.
class DuplicateKeys {
 public:
  explicit DuplicateKeys(std::string where) : where_(std::move(where)) {}

  bool operator()(Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      counts_.push_back(0);
    } else if (event == Json::parse_event_t::key) {
      ++counts_.back();
    } else if (event == Json::parse_event_t::object_end) {
      const size_t keys = counts_.back();
      counts_.pop_back();
      if (parsed.size() != keys) {
        const std::string first = parsed.empty() ? "" : parsed.begin().key();
        throw Error(ErrorKind::corrupt_data, where_,
                    str("an object has ", keys, " keys of which only ", parsed.size(),
                        " differ (its first key is \"", first, "\")"),
                    "remove the duplicate keys");
      }
    }
    return true;
  }

 private:
  std::string where_;
  std::vector<size_t> counts_;
};

}  // namespace

Json parse(const std::string& text, const std::string& where) {
  DuplicateKeys duplicates(where);
  // The parser takes a NUL for the end of the text and would not look at what follows.
  if (const size_t nul = text.find('\0'); nul != std::string::npos)
    throw Error(ErrorKind::corrupt_data, where, str("not valid JSON: a NUL at byte ", nul),
                "download the file again");
  try {
    return Json::parse(
        text, [&](int, Json::parse_event_t event, Json& parsed) { return duplicates(event, parsed); });
  } catch (const Json::exception& error) {
    const std::string fault = error.what();  // begins with "[json.exception...] "
    throw Error(ErrorKind::corrupt_data, where, "not valid JSON: " + fault.substr(fault.find(' ') + 1),
                "download the file again");
  }
}

JsonNode::JsonNode(const Json* value, std::string file, std::string path)
    : value_(value), file_(std::move(file)), path_(std::move(path)) {}

JsonNode JsonNode::operator[](const std::string& key) const {
  require_object();
  const auto found = value_->find(key);
  return JsonNode(found == value_->end() ? nullptr : &*found, file_, path_.empty() ? key : path_ + "." + key);
}

std::vector<JsonNode> JsonNode::items() const {
  require_array();
  std::vector<JsonNode> nodes;
  nodes.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i)
    nodes.emplace_back(&(*value_)[i], file_, str(path_, "[", i, "]"));
  return nodes;
}

const std::string& JsonNode::string() const {
  if (value_ == nullptr || !value_->is_string()) throw wrong_type("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (value_ == nullptr || !value_->is_boolean()) throw wrong_type("true or false");
  return value_->get<bool>();
}

int64_t JsonNode::count(int64_t max) const {
  if (value_ == nullptr || !value_->is_number_integer()) throw wrong_type("a whole number");
  const bool huge = value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(max);
  if (huge || value_->get<int64_t>() < 0) {
    throw corrupt(str("expected a whole number from 0 to ", max, ", found ", value_->dump()));
  }
  return value_->get<int64_t>();
}

int32_t JsonNode::id() const { return static_cast<int32_t>(count(kMaxId)); }

const JsonNode& JsonNode::require_array() const {
  if (value_ == nullptr || !value_->is_array()) throw wrong_type("an array");
  return *this;
}

const JsonNode& JsonNode::require_object() const {
  if (value_ == nullptr || !value_->is_object()) throw wrong_type("an object");
  return *this;
}

void JsonNode::require_character() const {
  const std::string& text = string();
  const size_t begin = text.empty() ? 0 : utf8_length(text[0]);
  if (text.empty() || text.size() != begin)
    throw corrupt(str("expected one character, found ", text.empty() ? "none" : "\"" + text + "\""));
}

Error JsonNode::wrong_type(const char* expected) const {
  return corrupt(str("expected ", expected, ", found ", value_ == nullptr ? "nothing" : value_->type_name()));
}

Error JsonNode::corrupt(const std::string& what) const {
  return Error(ErrorKind::corrupt_data, file_, path_.empty() ? what : path_ + ": " + what);
}

Error JsonNode::unsupported(const std::string& what) const {
  return Error(ErrorKind::unsupported, file_, str(path_, ": ", what, " is not built"),
               "byte-level BPE and byte-fallback BPE tokenizers are");
}

}  // namespace gramian::tokenizer
