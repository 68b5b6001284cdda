#include "pipeline/plain_budget.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"
#include "base/resources.h"
#include "pipeline/budget.h"

namespace gramian {
namespace {

// LibTorch's and the kernels' buffers, fragments of the heap; parts of a tensor on their way into a file.
constexpr int64_t kSlack = int64_t{48} << 20;
constexpr int64_t kChunk = int64_t{128} << 20;

int64_t stored_bytes(const Checkpoint& source, const std::string& name) {
  return static_cast<int64_t>(source.tensor(name).bytes.size());
}

}  // namespace

void refuse_small_memory(const QuantizePlan& plan, const Checkpoint& source, bool one_file,
                         int64_t memory_bytes) {
  std::string worst;
  int64_t most = 0;
  const auto keep = [&](const std::string& name, int64_t bytes) {
    if (bytes > most) most = bytes, worst = name;
  };
  for (const auto& layer : plan.layers) {
    for (const PlannedModule& module : layer) {
      if (!module.quantize) continue;
      const Linear& linear = module.linear;
      keep(linear.name, stored_bytes(source, linear.tensor_name()) +
                            solving_bytes(linear.out_features, linear.in_features));
    }
  }
  for (const std::string& name : one_file ? plan.copied : std::vector<std::string>())
    keep(name, stored_bytes(source, name) + std::min(kChunk, 8 * stored_bytes(source, name)));
  const int64_t needed = resident_bytes() + most + kSlack;
  if (needed <= memory_bytes) return;
  throw Error(ErrorKind::unsupported, "--memory",
              str("the job needs at least ", (needed + (1 << 20) - 1) >> 20, " MiB (at ", worst,
                  "), allowed are ", memory_bytes >> 20, " MiB"),
              "allow more memory");
}

}  // namespace gramian
