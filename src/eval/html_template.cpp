#include "eval/html_template.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

class Filler {
 public:
  Filler(std::string_view html, const Json& view) : html_(html), scopes_{&view} {}

  // Fills html_[begin, end).
  void fill(size_t begin, size_t end) {
    while (begin < end) {
      const size_t open = std::min(html_.find("{{", begin), end);
      out += html_.substr(begin, open - begin);
      if (open == end) return;
      const size_t close = html_.find("}}", open);
      GRAMIAN_CHECK(close < end, "a tag of the template is not closed");
      const std::string_view tag = html_.substr(open + 2, close - open - 2);
      begin = close + 2;
      if (tag.starts_with('#') || tag.starts_with('^')) {
        const size_t last = end_of_section(tag.substr(1), begin, end);
        section(tag, begin, last);
        begin = html_.find("}}", last) + 2;
      } else {
        const Json& value = look_up(tag);
        GRAMIAN_CHECK(value.is_string(), "{{", tag, "}} is no string");
        out += escape_html(value.get_ref<const std::string&>());
      }
    }
  }

  std::string out;

 private:
  // Where the closing tag begins. Sections of one name do not nest.
  size_t end_of_section(std::string_view name, size_t begin, size_t end) const {
    const size_t at = html_.find(str("{{/", name, "}}"), begin);
    GRAMIAN_CHECK(at < end, "section ", name, " of the template is not closed");
    return at;
  }

  void section(std::string_view tag, size_t begin, size_t end) {
    const Json& value = look_up(tag.substr(1));
    GRAMIAN_CHECK(value.is_structured() || value.is_string() || value.is_null(), tag, " is no section");
    const bool empty = value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
    if (tag.starts_with('^')) {
      if (empty) fill(begin, end);
    } else if (value.is_array()) {
      for (const Json& entry : value) inside(entry, begin, end);
    } else if (!empty) {
      inside(value, begin, end);
    }
  }

  void inside(const Json& scope, size_t begin, size_t end) {
    scopes_.push_back(&scope);
    fill(begin, end);
    scopes_.pop_back();
  }

  const Json& look_up(std::string_view name) const {
    if (name == ".") return *scopes_.back();
    for (size_t i = scopes_.size(); i-- > 0;) {
      if (!scopes_[i]->is_object()) continue;
      const auto found = scopes_[i]->find(name);
      if (found != scopes_[i]->end()) return *found;
    }
    GRAMIAN_CHECK(false, "the view has no ", name);
  }

  std::string_view html_;
  std::vector<const Json*> scopes_;
};

}  // namespace

std::string escape_html(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
          escaped += "\xEF\xBF\xBD";
        } else {
          escaped += c;
        }
    }
  }
  return escaped;
}

std::string fill_template(std::string_view html, const Json& view) {
  Filler filler(html, view);
  filler.fill(0, html.size());
  return std::move(filler.out);
}

}  // namespace gramian
