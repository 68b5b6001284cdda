#include "models/batch.h"

namespace gramian {

BatchContext make_batch_context(const std::vector<int64_t>& lengths, const RopeSpec& rope) {
  BatchContext context;
  for (const int64_t length : lengths) {
    GRAMIAN_CHECK(length > 0, "empty row in a batch");
    if (!context.runs.empty() && context.runs.back().length == length) {
      ++context.runs.back().rows;
    } else {
      context.runs.push_back({context.tokens, 1, length});
      context.rope.push_back(rope_table(rope, length));
    }
    context.tokens += length;
  }
  return context;
}

}  // namespace gramian
