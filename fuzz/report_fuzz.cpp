// Any bytes as the document of a demo: refused with gramian::Error, or a page.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "eval/report_page.h"
#include "formats/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const std::string page = gramian::report_page(gramian::parse_json(text, "input"), "input");
    if (!page.starts_with(gramian::page_beginning()) || !page.ends_with("</html>\n")) std::abort();
  } catch (const gramian::Error& error) {
    if (error.kind() != gramian::ErrorKind::corrupt_data) std::abort();
  }
  return 0;
}
