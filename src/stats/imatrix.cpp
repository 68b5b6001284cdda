#include "stats/imatrix.h"

namespace gramian {

ImatrixAccumulator::ImatrixAccumulator(int64_t in_features, int lanes)
    : lanes_({.columns = in_features,
              .shape = {in_features},
              .type = at::kDouble,
              .add = [](const at::Tensor& sum, const TokenBatch& batch, GramWorkspaces&,
                        ThreadPool* pool) { add_column_squares(sum, batch, pool, gram_form(batch.rows())); }},
             lanes) {}

void ImatrixAccumulator::add(int lane, const at::Tensor& rows, const at::Tensor& keep, ThreadPool* pool) {
  lanes_.add(lane, rows, keep, pool);
}

}  // namespace gramian
