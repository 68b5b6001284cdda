// The post_processor of tokenizer.json: adds special tokens round a sequence.
// Built: TemplateProcessing (its "single" form), ByteLevel (which changes offsets only), Sequences of them,
// null.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/tokenizer/json_node.h"

namespace gramian::tokenizer {

class PostProcessor {
 public:
  // `node` may be absent. Throws unsupported for a type that is not built.
  explicit PostProcessor(const JsonNode& node);
  std::vector<int64_t> operator()(std::vector<int64_t> ids) const;
  // Every id that a template adds.
  std::vector<int64_t> added_ids() const;

 private:
  // Ids to add, or, where empty, the place of the sequence.
  using Template = std::vector<std::vector<int64_t>>;

  void add(const JsonNode& node, int depth);
  static Template read_template(const JsonNode& node);

  std::vector<Template> templates_;
};

}  // namespace gramian::tokenizer
