// gramian bench run: tokens a second of a model beside the memory's read bandwidth.
#pragma once

#include <CLI/CLI.hpp>

namespace gramian::cli {

void add_bench_run(CLI::App& bench);

}  // namespace gramian::cli
