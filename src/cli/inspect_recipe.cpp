#include "cli/inspect_recipe.h"

#include <algorithm>

#include "base/error.h"
#include "cli/solve_flags.h"
#include "pipeline/plan.h"

namespace gramian::cli {
namespace {

Json describe_module(const PlannedModule& module) {
  const SolveOptions& solve = module.solve;
  Json json;
  json["name"] = module.linear.name;
  json["rule"] = module.rule.empty() ? Json(nullptr) : Json(module.rule);
  json["quantize"] = module.quantize;
  if (!module.quantize) {
    json["reason"] = module.skip_reason;
    return json;
  }
  json["format"] = module.format->name();
  json["bits"] = solve.grid.bits;
  json["activation_bits"] = solve.grid.activation_bits;
  json["group_size"] = solve.grid.group_size;
  json["symmetric"] = solve.grid.symmetric;
  json["mse"] = solve.grid.mse;
  json["damp_percent"] = solve.damp_percent;
  json["damp_step"] = solve.damp_step;
  json["order"] = to_text(solve.order);
  json["static_groups"] = solve.static_groups;
  json["fallback"] = module.fallback.refuse ? Json(nullptr) : Json(to_text(module.fallback.strategy));
  json["fallback_threshold"] = to_text(module.fallback.threshold);
  json["settings"] = describe(solve);
  return json;
}

// "model.layers.*.mlp.experts.*.up_proj"
std::string without_numbers(const std::string& name) {
  std::string text, part;
  const auto end = [&] {
    text += part.find_first_not_of("0123456789") == std::string::npos && !part.empty() ? "*" : part;
    part.clear();
  };
  for (const char c : name) {
    if (c != '.') {
      part += c;
      continue;
    }
    end();
    text += c;
  }
  end();
  return text;
}

}  // namespace

Json describe_recipe(const Model& model, const std::filesystem::path& recipe) {
  SolveFlags flags;
  flags.recipe = recipe;
  QuantizeJob job;
  settle_solve(flags, job);
  // A look costs nothing: what the head needs is said beside it.
  if (job.head) job.head->untie = true;
  Problems problems = job.recipe_problems;
  std::vector<std::string> warnings;
  const LinearFormat& format = find_format(job.format);
  problems.check([&] {
    Problems found;
    std::optional<Linear> head;
    if (job.head) head = model.head();
    check_settings(model.checkpoint().folder().string(), model.survey(), head, format, job.plan_options(),
                   false, found, warnings);
    found.refuse();
  });
  problems.refuse();
  const QuantizePlan plan = make_plan(model, format, job.plan_options());
  Json json;
  json["method"] = job.method;
  json["format"] = job.format;
  json["modules"] = Json::array();
  for (const auto& layer : plan.layers) {
    for (const PlannedModule& module : layer) json["modules"].push_back(describe_module(module));
  }
  if (job.head && model.tied())
    warnings.emplace_back(
        "the head is the embedding: quantize needs --untie to store a quantized one apart from it");
  json["warnings"] = warnings;
  return json;
}

std::string recipe_text(const Json& recipe) {
  struct Row {
    std::string name, settings, rule;
    int64_t count;
  };
  std::vector<Row> rows;
  for (const Json& module : recipe.at("modules")) {
    const bool quantize = module.at("quantize");
    const Row row{without_numbers(module.at("name")),
                  quantize ? module.at("settings").get<std::string>()
                           : "left as it is: " + module.at("reason").get<std::string>(),
                  module.at("rule").is_null() ? "" : module.at("rule").get<std::string>(), 1};
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& other) {
      return other.name == row.name && other.settings == row.settings && other.rule == row.rule;
    });
    if (same == rows.end()) {
      rows.push_back(row);
    } else {
      ++same->count;
    }
  }
  std::string text = str("recipe: method ", recipe.at("method").get<std::string>(), ", format ",
                         recipe.at("format").get<std::string>(), "\n");
  for (const Json& warning : recipe.at("warnings")) text += "warning: " + warning.get<std::string>() + "\n";
  std::vector<std::vector<std::string>> cells{{"modules", "count", "settings", "rule"}};
  for (const Row& row : rows) cells.push_back({row.name, str(row.count), row.settings, row.rule});
  return text + table(cells);
}

}  // namespace gramian::cli
