// What every statistic shares: one partial sum per lane that rows are added to in place, and their merge.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/parallel.h"
#include "stats/gram.h"
#include "stats/token_batch.h"

namespace gramian {

// What a statistic adds up.
struct SumKind {
  int64_t columns = 0;
  std::vector<int64_t> shape;  // of a sum
  at::ScalarType type = at::kFloat;
  std::function<void(const at::Tensor& sum, const TokenBatch&, GramWorkspaces&, ThreadPool*)> add;
};

// A partial is made when its lane first adds. All functions may be called from several threads: lanes add at the same time,
// several threads into the same lane take turns, and a batch that is added beside a merge is in it or in the next one.
class LaneSums {
 public:
  LaneSums(SumKind kind, int lanes);
  ~LaneSums();
  LaneSums(const LaneSums&) = delete;
  LaneSums& operator=(const LaneSums&) = delete;

  // `rows` and `keep` as TokenBatch takes them; an undefined `keep` counts every token. A batch without tokens does nothing.
  // Throws numerical, naming count and first row, when a value of a token that counts is not finite: nothing of the batch is
  // then added.
  void add(int lane, const at::Tensor& rows, const at::Tensor& keep, ThreadPool* pool = nullptr);
  void add(int lane, const at::Tensor& rows, ThreadPool* pool = nullptr) { add(lane, rows, {}, pool); }

  struct Sum {
    at::Tensor sum;  // undefined without tokens
    int64_t tokens = 0;
  };
  // All that was added since the last call: the partials are summed in lane order and each is freed as it is added, so at most
  // the result and one partial are alive beside those still to come. The lanes are then empty.
  Sum take();
  // All that was ever added, zeros when that is nothing. Rows added later and merged again give the sum of all rows in a new
  // tensor; the caller must not modify what it got. Not to be mixed with take().
  at::Tensor merge();

  // Token vectors in the lanes, and those merged.
  int64_t tokens() const;

 private:
  struct Lane;
  SumKind kind_;
  int count_;
  std::unique_ptr<Lane[]> lanes_;
  mutable std::mutex merging_;
  Sum merged_;
};

}  // namespace gramian
