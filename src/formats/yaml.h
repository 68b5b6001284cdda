// YAML 1.2 of configuration files, as JSON. What makes YAML dangerous or ambiguous is refused: anchors and aliases, which can
// grow without end, tags, several documents in one file, keys that are no scalars.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace gramian {

// Plain scalars are null, true, false, whole numbers and floats as the core schema of YAML 1.2 has them (`yes` and `0.5%` are
// text), quoted ones are text. Keys stay in file order. Throws corrupt_data with the file (`where`), line and column: for what
// is no YAML, for the above, for a key that stands twice, nesting deeper than 32, more than 1 MiB.
nlohmann::ordered_json parse_yaml(const std::string& text, const std::string& where);

}  // namespace gramian
