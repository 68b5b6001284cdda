#include "formats/module_patterns.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/tokenizer/regex.h"

namespace gramian {
namespace {

constexpr std::string_view kExperts = ".experts.";

// Whether `part` is the whole `name` or some of its parts between dots.
bool names_part(const std::string& name, const std::string& part) {
  return !part.empty() && ("." + name + ".").find("." + part + ".") != std::string::npos;
}

std::string escaped(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    if (c == '.') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

std::string either(const std::vector<std::string>& words) {
  if (words.size() == 1) return words[0];
  std::string pattern = "(";
  for (const std::string& word : words) pattern += (pattern.size() > 1 ? "|" : "") + word;
  return pattern + ")";
}

std::string parent_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot + 1);
}

// A name or its beginning without the number of its layer, which stands at `at` in between.
struct Numbered {
  std::string before, number, behind;
};

// The first part of `path` that is a number is that of the layer.
Numbered split_number(const std::string& path) {
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    if (end > begin && path.substr(begin, end - begin).find_first_not_of("0123456789") == std::string::npos)
      return {path.substr(0, begin), path.substr(begin, end - begin), path.substr(end)};
    begin = end + 1;
  }
  return {path, "", ""};
}

// Paths by what they are without their layers' numbers.
using Stems = std::map<std::pair<std::string, std::string>, std::set<std::string>>;

Stems stems_of(const std::set<std::string>& paths) {
  Stems stems;
  for (const std::string& path : paths) {
    const Numbered parts = split_number(path);
    stems[{parts.before, parts.behind}].insert(parts.number);
  }
  return stems;
}

// Patterns for `paths` as one per stem; where a stem has all its layers in `all`, their numbers need not be listed.
std::vector<std::string> stem_patterns(const std::set<std::string>& paths, const std::set<std::string>& all) {
  const Stems known = stems_of(all);
  std::vector<std::string> patterns;
  for (const auto& [stem, found] : stems_of(paths)) {
    std::vector<std::string> numbers(found.begin(), found.end());
    std::sort(numbers.begin(), numbers.end(), [](const std::string& a, const std::string& b) {
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    const bool every = numbers.size() > 1 && known.contains(stem) && known.at(stem) == found;
    patterns.push_back("^" + escaped(stem.first) + (every ? "\\d+" : either(numbers)) + escaped(stem.second));
  }
  return patterns;
}

}  // namespace

struct ModulePattern::State {
  tokenizer::Regex regex;
  std::string pattern, where;
};

ModulePattern::ModulePattern(const std::string& pattern, const std::string& where) {
  // Alone first: what stands around it could close its brackets.
  const tokenizer::Regex alone(pattern, where);
  state_ =
      std::make_shared<const State>(State{tokenizer::Regex("\\A(?:" + pattern + ")", where), pattern, where});
}

bool ModulePattern::matches(const std::string& module) const {
  try {
    return state_->regex.matches_somewhere(module);
  } catch (const Error&) {
    throw Error(ErrorKind::corrupt_data, state_->where,
                str("the pattern ", state_->pattern, " takes too many steps to match ", module),
                "write it without repeats inside of repeats");
  }
}

std::string exact_pattern(const std::string& name) { return "^" + escaped(name) + "$"; }

const std::vector<FusedModule>& fused_modules() {
  static const std::vector<FusedModule> kFused{
      {"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
      {"gate_up_proj", {"gate_proj", "up_proj"}},
      {"w13", {"w1", "w3"}},
      {"fused_qkv_a_proj", {"q_a_proj", "kv_a_proj_with_mqa"}},
      {"in_proj_qkvz", {"in_proj_qkv", "in_proj_z"}},
      {"in_proj_ba", {"in_proj_b", "in_proj_a"}},
  };
  return kFused;
}

std::string fused_matrix(const std::string& module) {
  const std::string parent = parent_of(module), leaf = module.substr(parent.size());
  for (const FusedModule& fused : fused_modules()) {
    if (std::find(fused.parts.begin(), fused.parts.end(), leaf) != fused.parts.end())
      return parent + fused.name;
  }
  return "";
}

std::string fused_name(const std::string& module) {
  if (const size_t at = module.find(kExperts); at != std::string::npos)
    return module.substr(0, at + kExperts.size() - 1);
  return fused_matrix(module);
}

std::vector<std::string> patterns_of(const std::vector<std::string>& names,
                                     const std::vector<std::string>& all) {
  const std::set<std::string> wanted(names.begin(), names.end());
  // Mixtures that are in `names` as a whole, then what is left by parents.
  std::set<std::string> banks, all_banks, torn;
  for (const std::string& name : all) {
    const size_t at = name.find(kExperts);
    if (at == std::string::npos) continue;
    const std::string bank = name.substr(0, at + kExperts.size() - 1);
    all_banks.insert(bank);
    if (!wanted.contains(name)) torn.insert(bank);
  }
  std::map<std::string, std::vector<std::string>> leaves, all_leaves;  // by parent
  for (const std::string& name : wanted) {
    const size_t at = name.find(kExperts);
    const std::string bank = at == std::string::npos ? "" : name.substr(0, at + kExperts.size() - 1);
    if (!bank.empty() && !torn.contains(bank)) {
      banks.insert(bank);
    } else {
      const std::string parent = parent_of(name);
      leaves[parent].push_back(name.substr(parent.size()));
    }
  }
  std::map<std::vector<std::string>, std::set<std::string>> parents;  // by the leaves that they have there
  for (auto& [parent, words] : leaves) {
    for (const FusedModule& fused : fused_modules()) {
      const bool whole = std::all_of(fused.parts.begin(), fused.parts.end(), [&](const char* part) {
        return std::find(words.begin(), words.end(), part) != words.end();
      });
      if (whole) words.emplace_back(fused.name);
    }
    parents[words].insert(parent);
  }
  std::set<std::string> all_parents;
  for (const std::string& name : all) all_parents.insert(parent_of(name));
  std::vector<std::string> patterns;
  for (const std::string& stem : stem_patterns(banks, all_banks)) patterns.push_back(stem + "(\\..+)?$");
  for (const auto& [words, found] : parents) {
    for (const std::string& stem : stem_patterns(found, all_parents))
      patterns.push_back(stem + either(words) + "$");
  }
  return patterns;
}

std::set<std::string> excluded_modules(const nlohmann::ordered_json& fields,
                                       const std::vector<std::string>& modules, const std::string& where) {
  std::set<std::string> excluded;
  const auto exclude = [&](const auto& matches) {
    for (const std::string& module : modules) {
      if (matches(module)) excluded.insert(module);
    }
  };
  if (!fields.is_object()) return excluded;
  const auto exclude_matches = [&](const std::string& text, const char* key) {
    const ModulePattern pattern(text, where + ": quantization_config: " + key);
    exclude([&](const std::string& module) { return pattern.matches(module); });
  };
  if (fields.contains("dynamic") && fields.at("dynamic").is_object()) {
    for (const auto& [pattern, overrides] : fields.at("dynamic").items()) {
      if (pattern.starts_with("-:")) exclude_matches(pattern.substr(2), "dynamic");
    }
  }
  for (const char* key : {"modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore"}) {
    if (!fields.contains(key) || !fields.at(key).is_array()) continue;
    for (const auto& part : fields.at(key)) {
      if (!part.is_string()) continue;
      const auto text = part.get<std::string>();
      if (text.starts_with("re:")) {
        exclude_matches(text.substr(3), key);
      } else {
        exclude([&](const std::string& module) { return names_part(module, text); });
      }
    }
  }
  return excluded;
}

}  // namespace gramian
