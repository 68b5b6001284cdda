// How a model goes on with a prompt, for pages that put two models side by side.
#pragma once

#include <string>
#include <vector>

#include "cli/common.h"
#include "formats/tokenizer.h"

namespace gramian::cli {

// Always the most likely token, 120 of them or until the model ends the text. Throws what generate() throws.
std::string continuation(ResidentModel& model, const Tokenizer& tokenizer, const std::vector<int64_t>& prompt,
                         Log& log);

}  // namespace gramian::cli
