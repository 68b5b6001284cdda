// What a recipe makes of a model's modules, for `gramian inspect`.
#pragma once

#include <filesystem>
#include <string>

#include "cli/common.h"
#include "models/model.h"

namespace gramian::cli {

// {"method", "format", "modules": [{"name", "rule", "quantize", settings...}], "warnings"}. Throws everything that quantize() would
// refuse of the recipe on this model.
Json describe_recipe(const Model& model, const std::filesystem::path& recipe);
// A row for all modules that differ only in the numbers of layer and expert.
std::string recipe_text(const Json& recipe);

}  // namespace gramian::cli
