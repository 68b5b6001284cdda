// Methods: named rows over the three axes (statistic, solver on a grid, format).
#pragma once

#include <string>
#include <vector>

#include "pipeline/pause_sums.h"
#include "solve/quantized.h"

namespace gramian {

struct Method {
  std::string name;
  std::string summary;  // one line for --help
  Statistic statistic = Statistic::none;
  const char* format = "qqq";  // where none is asked for
  SolveOptions defaults;
  SolveOptions compat = {};  // the peer's, under --compat gptqmodel
  bool single_pass = false;  // statistics of the original model, unless another order is asked for
  bool calibrated() const { return statistic != Statistic::none; }
  // Over scales of NVFP4.
  bool searches() const {
    return defaults.grid.kind == GridKind::nvfp4 &&
           defaults.search.candidates != ScaleSearch::Candidates::largest;
  }
  bool compensates() const {
    return statistic == Statistic::hessian;
  }  // later columns for errors of earlier ones
};

// Throws invalid_argument listing the known names.
const Method& find_method(const std::string& name);
const std::vector<Method>& all_methods();

}  // namespace gramian
