#include "pipeline/recipe_fields.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "formats/json.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownMax = 60;

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kShownMax ? text : text.substr(0, kShownMax) + "...";
}

// Letters that are to be inserted, removed or changed to make one of the other.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(const std::string& name, const std::set<std::string>& known) {
  std::string best;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  if (name.size() > kShownMax) return best;
  for (const std::string& one : known) {
    const size_t far = distance(name, one);
    if (far >= least) continue;
    least = far;
    best = one;
  }
  return best;
}

RecipeFields::RecipeFields(const Json& object, std::string where, std::string place, Problems& problems)
    : object_(object), where_(std::move(where)), place_(std::move(place)), problems_(problems) {}

void RecipeFields::problem(const std::string& field, const std::string& what, const std::string& hint) {
  problems_.add(Error(ErrorKind::invalid_argument, where_, place_ + field + ": " + what, hint));
}

void RecipeFields::check(const std::string& field, const std::function<void()>& parse) {
  try {
    parse();
  } catch (const Error& error) {
    problem(field, error.what());
  }
}

const Json* RecipeFields::take(const std::string& name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() ? nullptr : &*found;
}

const Json* RecipeFields::one_of(const std::vector<std::string>& names, std::string& found) {
  const Json* value = nullptr;
  for (const std::string& name : names) {
    const Json* one = take(name);
    if (one == nullptr) continue;
    if (value != nullptr && *value != *one)
      problem(name, shown(*one) + ", and " + found + " is " + shown(*value));
    value = one;
    found = name;
  }
  return value;
}

std::optional<bool> RecipeFields::boolean(const std::vector<std::string>& names) {
  std::string name;
  const Json* value = one_of(names, name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  problem(name, shown(*value) + " is neither true nor false");
  return std::nullopt;
}

std::optional<int64_t> RecipeFields::whole(const std::vector<std::string>& names,
                                           const std::vector<int64_t>& allowed) {
  std::string name;
  const Json* value = one_of(names, name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_integer()) {
    for (const int64_t one : allowed) {
      if (*value == one) return one;
    }
  }
  problem(name, shown(*value) + " is none of " + listed(allowed, [](int64_t one) { return str(one); }));
  return std::nullopt;
}

std::optional<int64_t> RecipeFields::whole_or_null(const std::string& name, int64_t most) {
  const Json* value = take(name);
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (value->is_number_integer() && *value >= 0 && *value <= most) return value->get<int64_t>();
  problem(name, shown(*value) + " is no whole number that can be");
  return std::nullopt;
}

std::optional<double> RecipeFields::number(const std::string& name, double least, double most) {
  const Json* value = take(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const double real = value->get<double>();
    if (real >= least && real <= most) return real;
  }
  problem(name, shown(*value) + str(" is no number from ", least, " to ", most));
  return std::nullopt;
}

std::optional<std::string> RecipeFields::text(const std::vector<std::string>& names,
                                              const std::vector<std::string>& allowed) {
  std::string name;
  const Json* value = one_of(names, name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string() &&
      std::find(allowed.begin(), allowed.end(), value->get_ref<const std::string&>()) != allowed.end())
    return value->get<std::string>();
  problem(name, shown(*value) + " is none of " + listed(allowed, [](const auto& one) { return one; }));
  return std::nullopt;
}

void RecipeFields::refuse(const std::vector<std::string>& names, const std::string& why) {
  for (const std::string& name : names) {
    const Json* value = take(name);
    known_.erase(name);  // nobody is to be led to it
    if (value == nullptr) continue;
    known_.insert(name);
    if (!value->is_null() && *value != Json(false)) problem(name, why);
  }
}

void RecipeFields::pass(const std::vector<std::string>& names) {
  for (const std::string& name : names) take(name);
}

void RecipeFields::finish() {
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    const std::string near = nearest_name(name, known_);
    problem(quote_name(name), "no such field", near.empty() ? "" : "is " + near + " meant?");
  }
}

}  // namespace gramian
