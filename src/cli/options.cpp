// gramian options: every verb and option as one Markdown page (docs/options.md), from the declarations themselves.
#include <cstdio>

#include "cli/common.h"

namespace gramian::cli {
namespace {

// Text that Markdown must not read as its own.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') {
      result += ' ';
      continue;
    }
    if (c == '<' || c == '|' || c == '*' || c == '_' || c == '[' || c == '`') result += '\\';
    result += c;
  }
  return result;
}

std::string option_line(const CLI::Option& option) {
  const bool positional = option.get_positional();
  std::string name = positional ? option.get_name() : option.get_name(false, true);
  for (size_t at = name.find(','); at != std::string::npos; at = name.find(',', at + 3))
    name.replace(at, 1, "`, `");
  std::string type = option.get_items_expected_max() == 0 ? "" : option.get_type_name();
  std::string facts = type.empty() ? "" : " " + plain(type);
  if (option.get_required()) facts += ", required";
  if (!option.get_default_str().empty()) facts += ", default `" + option.get_default_str() + "`";
  return str("- `", name, "`", facts, "  \n  ", plain(option.get_description()), "\n");
}

// Every verb has these.
bool is_common(const std::string& name) {
  return name == "--help" || name == "--json" || name == "--quiet" || name == "--threads";
}

void describe(const CLI::App& verb, const std::string& path, std::string& page) {
  page += str("\n## ", path, "\n\n", plain(verb.get_description()), ".\n\n");
  for (const CLI::Option* option : verb.get_options()) {
    if (!is_common(option->get_name())) page += option_line(*option);
  }
  for (const CLI::App* inner : verb.get_subcommands({}))
    describe(*inner, path + " " + inner->get_name(), page);
}

void run(const CLI::App& app) {
  std::string page =
      "# Every option\n\nMade by `gramian options` from the program's own declarations; `gramian VERB "
      "--help` says the same.\n";
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (!verb->get_group().empty()) describe(*verb, "gramian " + verb->get_name(), page);
  }
  std::fputs(page.c_str(), stdout);
}

}  // namespace

void add_options(CLI::App& app) {
  CLI::App& verb = *app.add_subcommand("options", "Print every verb and option as one Markdown page");
  verb.group("");  // for the documentation, not for the list of verbs
  verb.callback([&app] { run(app); });
}

}  // namespace gramian::cli
