// What the bytes of a job's output depend on, for its journal.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pipeline/preflight.h"
#include "pipeline/quantize.h"

namespace gramian {

// {"program", "options", "rows", "config", "weights"}, each an object. Not in it: threads, memory, how batches wait, where
// things lie. `ready.digests` names the weights' content; without it (no scan) sizes and times of the source's files stand
// for it.
nlohmann::ordered_json job_identity(const QuantizeJob& job, const Prepared& ready);

// The part of it that the statistics of the original model depend on.
nlohmann::ordered_json statistics_identity(const nlohmann::ordered_json& job);
// What differs between two identities, one phrase a section.
std::vector<std::string> identity_differences(const nlohmann::ordered_json& was,
                                              const nlohmann::ordered_json& is);

}  // namespace gramian
