#include "formats/tokenizer/post_processor.h"

#include <algorithm>
#include <utility>

namespace gramian::tokenizer {
namespace {

constexpr int kMaxDepth = 8;

std::vector<int64_t> read_special(const JsonNode& special_tokens, const JsonNode& name) {
  const JsonNode entry = special_tokens[name.string()];
  if (!entry.has_value()) throw name.corrupt(str("\"", name.string(), "\" is not among special_tokens"));
  std::vector<int64_t> ids;
  for (const JsonNode& id : entry["ids"].items()) ids.push_back(id.id());
  if (ids.empty()) throw entry["ids"].corrupt("expected at least one id");
  return ids;
}

}  // namespace

PostProcessor::PostProcessor(const JsonNode& node) {
  if (node.has_value()) add(node, 0);
}

void PostProcessor::add(const JsonNode& node, int depth) {
  const std::string& type = node.type();
  if (type == "TemplateProcessing") {
    templates_.push_back(read_template(node));
  } else if (type == "Sequence") {
    if (depth == kMaxDepth) throw node.unsupported(str("a sequence nested deeper than ", kMaxDepth));
    for (const JsonNode& part : node["processors"].items()) add(part, depth + 1);
  } else if (type != "ByteLevel") {
    throw node.unsupported(str("post_processor type \"", type, "\""));
  }
}

PostProcessor::Template PostProcessor::read_template(const JsonNode& node) {
  Template parts;
  bool has_sequence = false;
  for (const JsonNode& item : node["single"].items()) {
    const JsonNode special = item["SpecialToken"];
    const JsonNode sequence = item["Sequence"];
    if (special.has_value() == sequence.has_value()) {
      throw item.corrupt("expected either \"SpecialToken\" or \"Sequence\"");
    }
    if (special.has_value()) {
      parts.push_back(read_special(node["special_tokens"], special["id"]));
      continue;
    }
    if (const std::string id = sequence["id"].string(); id != "A") {
      throw sequence["id"].corrupt(
          str("expected \"A\" in the template of a single text, found \"", id, "\""));
    }
    if (has_sequence) throw item.unsupported("a template that holds the text twice");
    has_sequence = true;
    parts.emplace_back();
  }
  if (!has_sequence) throw node["single"].corrupt("the template has no place for the text");
  return parts;
}

std::vector<int64_t> PostProcessor::operator()(std::vector<int64_t> ids) const {
  for (const Template& parts : templates_) {
    std::vector<int64_t> out;
    for (const std::vector<int64_t>& part : parts) {
      const std::vector<int64_t>& source = part.empty() ? ids : part;
      out.insert(out.end(), source.begin(), source.end());
    }
    ids = std::move(out);
  }
  return ids;
}

std::vector<int64_t> PostProcessor::added_ids() const {
  std::vector<int64_t> ids;
  for (const Template& parts : templates_) {
    for (const std::vector<int64_t>& part : parts) ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

}  // namespace gramian::tokenizer
