#include "models/sharing/layer_tree.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using Numbered = std::map<int64_t, std::vector<std::string>>;  // block number -> paths

constexpr const char* kExpert = "#";

struct Token {
  std::vector<std::string> names;  // its own, then aliases
  std::optional<int64_t> digit;
  std::string tag;
  bool silent = false;        // !
  bool capture_only = false;  // ?
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(separator); end != std::string::npos; end = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

std::string join(const std::string& parent, const std::string& name) {
  if (name.empty()) return parent;
  return parent.empty() ? name : parent + "." + name;
}

// `path` with "#" for every part that is a number.
std::string with_placeholders(const std::string& path) {
  std::string out;
  for (const std::string& part : split(path, '.')) out = join(out, is_number(part) ? kExpert : part);
  return out;
}

// Replaces the part "#" of `path`.
std::string with_expert(const std::string& path, int64_t expert) {
  std::string out;
  for (const std::string& part : split(path, '.')) out = join(out, part == kExpert ? str(expert) : part);
  return out;
}

bool has_placeholder(const std::string& path) {
  const std::vector<std::string> parts = split(path, '.');
  return std::find(parts.begin(), parts.end(), kExpert) != parts.end();
}

// A module by all its spellings; the first is its own.
using Spellings = std::vector<std::string>;

Spellings join_all(const Spellings& parents, const std::vector<std::string>& names) {
  Spellings all;
  for (const std::string& parent : parents) {
    for (const std::string& name : names) all.push_back(join(parent, name));
  }
  return all;
}

// Reads trees: their leaves' specs and spellings, and the blocks of each.
class Reader {
 public:
  Reader(std::map<std::string, LeafSpec>& leaves, std::map<std::string, std::string>& paths,
         std::string where)
      : leaves_(leaves), paths_(paths), where_(std::move(where)) {}

  Blocks read(const Json& tree) {
    const size_t size = tree.size();
    if (size < 2 || !tree.back().is_object() || tree[size - 2] != kExpert)
      fail("a tree", "must be a path, \"#\" and a mapping, found " + tree.dump());
    for (size_t i = 0; i + 2 < size; ++i) {
      if (!tree[i].is_string() || tree[i].get_ref<const std::string&>().empty())
        fail("a tree", "the path to its layers must be of names, found " + tree[i].dump());
    }
    Blocks blocks;
    for (auto& [number, paths] : mapping({""}, tree.back(), false)) blocks.push_back(std::move(paths));
    return blocks;
  }

 private:
  [[noreturn]] void fail(const std::string& token, const std::string& what) const {
    throw Error(ErrorKind::invalid_argument, where_, token + ": " + what,
                "the notation stands in docs/sharing.md");
  }

  Token parse(const std::string& text) const {
    std::vector<std::string> parts = split(text, ':');
    const std::vector<std::string> names = split(parts[0], '|');
    Token token{.names = names, .digit = std::nullopt, .tag = ""};
    for (const std::string& name : names) {
      if (name.empty() && names.size() > 1) fail("'" + text + "'", "a name is empty");
    }
    parts.erase(parts.begin());
    for (const std::string& flag : parts) {
      if (flag == "!") token.silent = true;
      if (flag == "?") token.capture_only = true;
      if (flag.starts_with("in=")) {
        if (flag.size() == 3) fail("'" + text + "'", "the input tag is empty");
        if (!token.tag.empty()) fail("'" + text + "'", "has two input tags");
        token.tag = flag.substr(3);
      }
      if (!is_number(flag)) continue;
      if (token.digit) fail("'" + text + "'", "has two block numbers");
      if (flag.size() > 6) fail("'" + text + "'", "the block number is too large");
      token.digit = std::stoll(flag);
    }
    return token;
  }

  // Blocks of what stands under a key; `silent`: none of it is quantized.
  Numbered value(const Spellings& parent, const Json& json, bool silent) {
    if (json.is_object()) return mapping(parent, json, silent);
    if (!json.is_array())
      fail("'" + parent[0] + "'", "must be a list of leaves or a mapping, found " + json.dump());
    Numbered blocks;
    for (const Json& leaf : json) {
      if (!leaf.is_string()) fail("'" + parent[0] + "'", "a leaf must be text, found " + leaf.dump());
      add_leaf(parent, parse(leaf.get<std::string>()), silent, blocks);
    }
    return blocks;
  }

  void add_leaf(const Spellings& parent, const Token& token, bool silent, Numbered& blocks) {
    const std::string& name = token.names[0];
    if (name.empty()) fail("a leaf of '" + parent[0] + "'", "has no name");
    const bool is_parent = !parent[0].empty() && (name == kExpert || name == split(parent[0], '.').back());
    const Spellings spellings = is_parent ? parent : join_all(parent, token.names);
    const std::string& path = spellings[0];
    // An expert's name would not lead back to it.
    if (has_placeholder(path) && path != with_placeholders(path))
      fail("'" + path + "'", "has a number, or nothing between two dots, beside '#'");
    const LeafSpec spec{.digit = token.digit.value_or(0),
                        .tag = token.tag,
                        .quantize = !silent && !token.silent && !token.capture_only};
    const auto [known, fresh] = leaves_.emplace(path, spec);
    if (!fresh && known->second != spec) {
      const auto text = [](const LeafSpec& s) {
        return str("block ", s.digit, s.tag.empty() ? ", no input tag" : ", in=" + s.tag,
                   s.quantize ? "" : ", not quantized");
      };
      fail("'" + path + "'",
           "stands there twice and in conflict: " + text(known->second) + " and " + text(spec));
    }
    for (const std::string& spelling : spellings) paths_.emplace(spelling, path);
    if (spec.quantize) blocks[spec.digit].push_back(path);
  }

  Numbered mapping(const Spellings& parent, const Json& json, bool silent) {
    std::vector<Numbered> parts;   // in the order of keys
    std::optional<size_t> common;  // which of them the keys with a digit share
    for (const auto& [key, below] : json.items()) {
      const Token token = parse(key);
      if (!token.tag.empty()) fail("'" + key + "'", "an input tag belongs to a leaf");
      if (token.names[0] == kExpert && has_placeholder(parent[0]))
        fail("'" + parent[0] + "'", "experts inside experts");
      Numbered blocks = value(join_all(parent, token.names), below, silent || token.silent);
      if (!token.digit) {
        parts.push_back(std::move(blocks));
        continue;
      }
      if (!common) {
        common = parts.size();
        parts.emplace_back();
      }
      for (auto& [number, paths] : blocks) {
        std::vector<std::string>& block = parts[*common][*token.digit + number];
        block.insert(block.end(), paths.begin(), paths.end());
      }
    }
    Numbered all;
    for (Numbered& part : parts) {
      const int64_t first = all.empty() ? 0 : all.rbegin()->first + 1;
      for (auto& [number, paths] : part) all[first + number] = std::move(paths);
    }
    return all;
  }

  std::map<std::string, LeafSpec>& leaves_;
  std::map<std::string, std::string>& paths_;
  std::string where_;
};

}  // namespace

LayerTree LayerTree::parse(const Json& tree, const std::string& where) {
  LayerTree parsed;
  Reader reader(parsed.leaves_, parsed.paths_, where);
  const bool is_array = tree.is_array() && !tree.empty();
  const bool variants =
      is_array && std::all_of(tree.begin(), tree.end(), [](const Json& item) { return item.is_array(); });
  if (!is_array)
    throw Error(ErrorKind::invalid_argument, where, "a module tree must be a list, found " + tree.dump());
  if (!variants) {
    parsed.templates_ = reader.read(tree);
    return parsed;
  }
  for (const Json& variant : tree) {
    for (auto& block : reader.read(variant)) parsed.templates_.push_back(std::move(block));
  }
  return parsed;
}

Blocks LayerTree::blocks(int64_t experts, const std::function<bool(const std::string&)>& excluded) const {
  Blocks blocks;
  std::set<std::string> seen;
  for (const auto& paths : templates_) {
    std::vector<std::string> block;
    const auto add = [&](const std::string& name) {
      if (excluded && excluded(name)) return;
      if (seen.insert(name).second) block.push_back(name);
    };
    for (const std::string& path : paths) {
      if (!has_placeholder(path)) {
        add(path);
        continue;
      }
      for (int64_t e = 0; e < experts; ++e) add(with_expert(path, e));
    }
    if (!block.empty()) blocks.push_back(std::move(block));
  }
  return blocks;
}

std::string LayerTree::path_of(const std::string& name) const {
  auto found = paths_.find(name);
  if (found == paths_.end()) found = paths_.find(with_placeholders(name));
  return found == paths_.end() ? std::string() : found->second;
}

Blocks LayerTree::blocks_of(const std::vector<std::string>& names) const {
  std::map<std::string, std::string> present;  // what the tree calls it -> name
  int64_t experts = 0;
  for (const std::string& name : names) {
    std::string path = path_of(name);
    for (const std::string& part : split(name, '.')) {
      if (!is_number(part) || part.size() > 9) continue;
      const int64_t expert = std::stoll(part);
      experts = std::max(experts, expert + 1);
      path = with_expert(path, expert);
    }
    if (!path.empty()) present.emplace(path, name);
  }
  Blocks found = blocks(experts, [&](const std::string& name) { return !present.contains(name); });
  for (auto& block : found) {
    for (std::string& name : block) name = present.at(name);
  }
  return found;
}

const LeafSpec* LayerTree::find(const std::string& name) const {
  const auto found = leaves_.find(path_of(name));
  return found == leaves_.end() ? nullptr : &found->second;
}

}  // namespace gramian
