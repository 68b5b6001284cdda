#include "pipeline/output.h"

#include "pipeline/output_folder.h"
#include "pipeline/output_gguf.h"
#include "pipeline/preflight.h"
#include "pipeline/quantize.h"

namespace gramian {

std::unique_ptr<Output> make_output(const QuantizeJob& job, const Prepared& ready,
                                    const std::filesystem::path& staging, ThreadPool& pool) {
  const Checkpoint& source = *ready.subject.checkpoint;
  if (ready.gguf)
    return std::make_unique<OutputGguf>(job.output, job.force, staging, source, *ready.gguf, ready.plan,
                                        pool);
  return std::make_unique<OutputFolder>(job.output, job.force, staging, source, ready.plan,
                                        job.shard_bytes_max);
}

}  // namespace gramian
