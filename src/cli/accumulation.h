// --hessian-input-dtype, --staging-dtype, --chunk-size and --chunk-bytes of verbs that sum Hessians.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "stats/accumulation.h"

namespace gramian::cli {

struct AccumulationFlags {
  std::string input = "auto";
  std::string staging;
  std::string chunk_bytes;
  int64_t chunk_size = 0;
  // What is not given is `base`'s. Throws invalid_argument for words that say nothing.
  AccumulationSettings settings(AccumulationSettings base = {}) const;
};
void add_accumulation_flags(CLI::App& verb, AccumulationFlags& flags);

}  // namespace gramian::cli
