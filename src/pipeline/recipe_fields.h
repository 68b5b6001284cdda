// One object of a recipe, whose fields are taken one by one in the type that they must have. What is wrong goes into `problems`.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/problems.h"

namespace gramian {

class RecipeFields {
 public:
  using Json = nlohmann::ordered_json;

  // `place`: what stands before a field's name in messages, "dynamic: .*v_proj: ". All must outlive the object.
  RecipeFields(const Json& object, std::string where, std::string place, Problems& problems);

  // The field, or nullptr where it is missing; null is a value.
  const Json* take(const std::string& name);
  // Each is nothing for a field that is missing or wrong. `names`: the field's own, and what other tools call it, of which only
  // one may be there.
  std::optional<bool> boolean(const std::vector<std::string>& names);
  std::optional<int64_t> whole(const std::vector<std::string>& names, const std::vector<int64_t>& allowed);
  std::optional<int64_t> whole_or_null(const std::string& name, int64_t most);
  std::optional<double> number(const std::string& name, double least, double most);
  std::optional<std::string> text(const std::vector<std::string>& names,
                                  const std::vector<std::string>& allowed);
  // Fields that exist elsewhere and mean nothing here.
  void refuse(const std::vector<std::string>& names, const std::string& why);
  // Those that are known and change nothing.
  void pass(const std::vector<std::string>& names);
  // Refuses what was never taken, with the nearest name of those that were asked for.
  void finish();

  void problem(const std::string& field, const std::string& what, const std::string& hint = "");
  // What `parse` makes of a text; its error becomes a problem of `field`.
  void check(const std::string& field, const std::function<void()>& parse);

 private:
  const Json* one_of(const std::vector<std::string>& names, std::string& found);
  const Json& object_;
  std::string where_, place_;
  Problems& problems_;
  std::set<std::string> known_;
};

// The one of `known` that differs least from `name`, if it is near enough to be meant; else empty.
std::string nearest_name(const std::string& name, const std::set<std::string>& known);

}  // namespace gramian
