// Where the page of a demo goes.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace gramian::cli {

// Before the work: refuses a path without a folder, a folder, and a file that is not a page of ours.
void check_page(const std::filesystem::path& path);
// Writes report_page(document, where) through a temporary name.
void write_page(const std::filesystem::path& path, const nlohmann::ordered_json& document,
                const std::string& where);

}  // namespace gramian::cli
