// HTML from a readable template and a view. There is no way to insert text unescaped.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace gramian {

// `text` (UTF-8) fit for HTML text and for quoted attribute values. Control characters, which HTML forbids, become
// U+FFFD; tab and newline stay.
std::string escape_html(std::string_view text);

// Fills the tags of a template, a subset of Mustache:
//   {{name}}                 a string of the view, escaped; {{.}} is the entry itself in a list of strings
//   {{#name}} ... {{/name}}  for a list once per entry; for an object or a string that is not empty once; else not at all
//   {{^name}} ... {{/name}}  once where {{#name}} would give nothing
// Inside a section names are looked up in the entry first, then outwards. What is inserted is not looked at again. A name
// that no scope holds, a value of another type, and an unclosed tag are bugs of ours (internal).
std::string fill_template(std::string_view html, const nlohmann::ordered_json& view);

}  // namespace gramian
