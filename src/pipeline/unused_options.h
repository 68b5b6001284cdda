// Options that change nothing in a job: a user who gave one is told so by its own name.
#pragma once

#include <string>
#include <vector>

#include "pipeline/preflight.h"
#include "pipeline/quantize.h"

namespace gramian {

// One line for each reason: job.unused_options, and those of job.given that only a forward over rows, a Hessian or a fallback
// would read where the job has none.
std::vector<std::string> say_unused(const QuantizeJob& job, const Prepared& ready);

}  // namespace gramian
