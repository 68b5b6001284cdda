// The page that `gramian demo` ends with: one HTML file that needs nothing else, neither network nor script.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace gramian {

// The page of a document as `gramian demo --json` prints it (docs/report.md); a pure function. Every text of the document is
// escaped. `where` names the document in messages. Throws corrupt_data when it does not fit (report_document.h).
std::string report_page(const nlohmann::ordered_json& document, const std::string& where);

// The template of all pages (report_page.html) with a view of its sections.
std::string filled_page(const nlohmann::ordered_json& view);
// "QQQ" of "qqq".
std::string method_title(const std::string& method);

// How every page of ours begins, of whatever version.
std::string_view page_beginning();

}  // namespace gramian
