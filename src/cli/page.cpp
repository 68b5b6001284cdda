#include "cli/page.h"

#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "eval/report_page.h"

namespace gramian::cli {
namespace fs = std::filesystem;

void check_page(const fs::path& path) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::invalid_argument, path.string(), what, "name another .html file");
  };
  if (!path.has_filename()) refuse("is no file name");
  const fs::path folder = fs::absolute(path).parent_path();
  if (!fs::is_directory(folder)) refuse("no folder " + folder.string());
  if (fs::is_directory(path)) refuse("is a folder, expected a file name");
  if (!fs::exists(path)) return;
  if (fs::is_regular_file(path)) {
    const MappedFile file(path);
    const std::string_view beginning = page_beginning();
    if (file.bytes().size() >= beginning.size() &&
        std::memcmp(file.bytes().data(), beginning.data(), beginning.size()) == 0) {
      return;
    }
  }
  refuse("exists and is not a page of gramian, so it is not replaced");
}

}  // namespace gramian::cli
