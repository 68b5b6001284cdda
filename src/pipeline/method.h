// Methods: named rows over the three axes (statistic, solver on a grid, format).
#pragma once

#include <string>
#include <vector>

#include "solve/quantized.h"

namespace gramian {

struct Method {
  std::string name;
  std::string summary;  // one line for --help
  bool needs_hessian = false;
  const char* format = "qqq";  // where none is asked for
  SolveOptions defaults;
  SolveOptions compat = {};  // the peer's, under --compat gptqmodel
};

// Throws invalid_argument listing the known names.
const Method& find_method(const std::string& name);
const std::vector<Method>& all_methods();

}  // namespace gramian
