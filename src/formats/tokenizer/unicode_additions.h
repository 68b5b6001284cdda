// Characters that Unicode gained from version 15.0 to 16.0.
#pragma once

#include <string>
#include <string_view>

namespace gramian::tokenizer {

// The characters of the general category `category` (one or two letters, for example "L" or "Nd") that a
// PCRE2 with Unicode 14.0 or later may not know yet, as members of a PCRE2 character class; empty when there
// are none.
std::string unicode_additions(std::string_view category);

}  // namespace gramian::tokenizer
