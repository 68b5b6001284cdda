// How configurations name modules: patterns and lists.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

namespace gramian {

// A PCRE pattern that matches `name` alone.
std::string exact_pattern(const std::string& name);

// Those of `modules` (full names) that a quantization_config leaves out: what a negative pattern of `dynamic` matches from its
// start, as GPT-QModel reads it, and what a list such as `modules_to_not_convert` or `ignore` names, whole, by some of its parts
// or by a pattern behind "re:".
// Throws corrupt_data, naming `where`, for a pattern that is none.
std::set<std::string> excluded_modules(const nlohmann::ordered_json& fields,
                                       const std::vector<std::string>& modules, const std::string& where);

}  // namespace gramian
