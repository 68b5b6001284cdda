#include "stats/imatrix.h"

namespace gramian {

ImatrixAccumulator::ImatrixAccumulator(int64_t in_features, int lanes)
    : LaneSums(
          {.columns = in_features,
           .shape = {in_features},
           .type = at::kDouble,
           .add = [](const at::Tensor& sum, const TokenBatch& batch, GramWorkspaces&,
                     ThreadPool* pool) { add_column_squares(sum, batch, pool, gram_form(batch.rows())); }},
          lanes) {}

}  // namespace gramian
