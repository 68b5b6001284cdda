// What this process runs on and has used, for reports.
#pragma once

#include <cstdint>
#include <string>

namespace gramian {

// Highest resident set since the start, or since reset_peak_rss() where the kernel allows a reset. Mapped pages count.
int64_t peak_rss_bytes();
// Resident set now.
int64_t resident_bytes();
// From now on large blocks go back to the system as soon as they are freed, so that a bound of memory holds.
void return_freed_memory();
// Starts a new peak measurement (Linux); returns whether the kernel accepted it.
bool reset_peak_rss();
// The processor's name as the kernel gives it; "unknown processor" where it gives none.
std::string cpu_name();

}  // namespace gramian
