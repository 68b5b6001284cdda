// What this process has used, for reports.
#pragma once

#include <cstdint>

namespace gramian {

// Highest resident set since the start, or since reset_peak_rss() where the kernel allows a reset. Mapped pages count.
int64_t peak_rss_bytes();
// Resident set now.
int64_t resident_bytes();
// Starts a new peak measurement (Linux); returns whether the kernel accepted it.
bool reset_peak_rss();

}  // namespace gramian
