// Recipes: the settings of a job as a file, YAML or JSON, with GPT-QModel's names of fields (docs/recipes.md).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/problems.h"
#include "pipeline/calibrator.h"
#include "pipeline/module_settings.h"
#include "stats/accumulation.h"

namespace gramian {

struct Recipe {
  std::optional<std::string> method, format;
  SettingsPatch defaults;
  std::vector<ModuleRule> rules;
  bool lm_head = false;
  std::optional<bool> shared_inputs;
  std::optional<Sequential> sequential;
  std::optional<HessianInput> hessian_input;
  std::optional<DType> staging;  // of the Hessians' sums
  std::optional<int64_t> chunk_size, chunk_bytes;
  Problems problems;  // everything that is wrong with the file's fields, patterns and values
};

// A file whose name ends with .json is read as JSON, every other one as YAML. Throws corrupt_data with the line where it is
// neither; what is wrong with its content goes into `problems`, so that it can be said along with everything else.
Recipe read_recipe(const std::filesystem::path& path);
// The same of the text of a file called `where`.
Recipe parse_recipe(const std::string& text, const std::string& where);

}  // namespace gramian
