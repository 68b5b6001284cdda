#include "stats/local_hessian.h"

#include "kernels/gram/gram.h"

namespace gramian {
namespace {

int64_t blocks_of(int64_t columns) { return (columns + gram::kBlockWidth - 1) / gram::kBlockWidth; }

}  // namespace

LocalHessianAccumulator::LocalHessianAccumulator(int64_t in_features, int lanes,
                                                 const AccumulationSettings& settings, Log* log)
    : LaneSums({.columns = in_features,
                .shape = {blocks_of(in_features), gram::kBlockWidth, gram::kBlockWidth},
                .add =
                    [settings, log](const at::Tensor& sum, const TokenBatch& batch,
                                    GramWorkspaces& workspaces, ThreadPool* pool) {
                      add_diagonal_blocks(sum, batch, resolve(settings, batch, log), workspaces, pool,
                                          gram_form(batch.rows()));
                    }},
               lanes) {}

}  // namespace gramian
