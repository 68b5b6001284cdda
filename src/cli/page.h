// Where a page goes.
#pragma once

#include <filesystem>

namespace gramian::cli {

// Before the work: refuses a path without a folder, a folder, and a file that is not a page of ours.
void check_page(const std::filesystem::path& path);
}  // namespace gramian::cli
