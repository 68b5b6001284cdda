// Sections of a job's page that have a chart of their own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "eval/job_document.h"

namespace gramian {

// What layers lost on held-out rows, and the linear layers that were flagged; null without such rows.
nlohmann::ordered_json proof_view(const JobDocument& document);
// How many tokens each expert saw, mixture by mixture; null without experts (modules called MIXTURE.experts.NUMBER.NAME).
nlohmann::ordered_json coverage_view(const JobDocument& document);
// The mean divergence, or without a reference the negative log-likelihood, by how much context there was.
nlohmann::ordered_json positions_view(const std::optional<JobEvaluation>& evaluation);

}  // namespace gramian
