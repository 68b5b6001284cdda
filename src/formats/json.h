// Strict JSON: what a lenient parser lets pass (duplicate keys, a NUL that ends the text early, unbounded
// nesting) is refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gramian {

// JSON text with keys in file order; throws corrupt_data with the file (`where`), the line and column of the
// fault. Duplicate keys are refused at every depth, and nesting deeper than 128. Linear in the text, also for
// objects with very many keys (but looking a key up in an ordered_json object is a linear search).
nlohmann::ordered_json parse_json(const std::string& text, const std::string& where);

// The number; null where it is not finite, which JSON has no number for.
nlohmann::ordered_json number_or_null(double value);

// A name from a file, fit for a one-line message: in quotes, control bytes as \xNN, cut after 200 bytes.
std::string quote_name(std::string_view name);

// The names quoted, separated by commas; after `count_max` of them "and N more".
std::string quote_names(const std::vector<std::string>& names, size_t count_max);

}  // namespace gramian
