#pragma once

#include <CLI/CLI.hpp>

namespace gramian::cli {

void add_bench_solve(CLI::App& verb);

}  // namespace gramian::cli
