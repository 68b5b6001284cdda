// The page of one quantization: what it made, where most was lost and why, time and memory.
#pragma once

#include <string>

#include "eval/job_document.h"

namespace gramian {

// One HTML file that needs nothing else; a pure function. Every text of the document is escaped. `where` is for messages.
std::string job_page(const JobDocument& document, const std::string& where);

// What would lower a module's error, in a sentence; the most likely reason first.
std::string advice_for(const JobModule& module);

}  // namespace gramian
