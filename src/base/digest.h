// Fingerprints that tell whether bytes are still the same: XXH3 of 128 bits (libxxhash) as 32 hexadecimal digits. Against
// accidents, not against forgery.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/parallel.h"

namespace gramian {

// Of the digests of every 16 MiB, so that threads share the work; the number of threads changes nothing. `pool`: null for the
// calling thread alone.
std::string digest(std::span<const std::byte> bytes, ThreadPool* pool = nullptr);
std::string digest(std::string_view text);

}  // namespace gramian
