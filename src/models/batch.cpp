#include "models/batch.h"

namespace gramian {

BatchContext make_batch_context(const std::vector<int64_t>& lengths, const std::vector<RopeSpec>& ropes) {
  BatchContext context;
  for (const int64_t length : lengths) {
    GRAMIAN_CHECK(length > 0, "empty row in a batch");
    if (!context.runs.empty() && context.runs.back().length == length) {
      ++context.runs.back().rows;
    } else {
      context.runs.push_back({context.tokens, 1, length});
    }
    context.tokens += length;
  }
  for (const RopeSpec& rope : ropes) {
    auto& tables = context.rope.emplace_back();
    for (const RowRun& run : context.runs) tables.push_back(rope_table(rope, run.length));
  }
  return context;
}

BatchContext make_continuation(const RopeSpan& span, const std::vector<RopeSpec>& ropes) {
  GRAMIAN_CHECK(span.length > 0 && span.begin >= 0 && span.whole >= span.begin + span.length,
                "tokens outside their row");
  BatchContext context;
  context.runs.push_back({.begin = 0, .rows = 1, .length = span.length, .past = span.begin});
  context.tokens = span.length;
  for (const RopeSpec& rope : ropes) context.rope.push_back({rope_table(rope, span)});
  return context;
}

}  // namespace gramian
