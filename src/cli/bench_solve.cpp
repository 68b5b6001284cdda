// gramian bench solve: one linear layer from its Hessian to codes.
#include "cli/bench_solve.h"

#include <vector>

#include "base/format.h"
#include "cli/common.h"
#include "eval/solve_speed.h"
#include "kernels/cpu_level.h"

namespace gramian::cli {
namespace {

struct Flags {
  int64_t rows = 4096, columns = 4096, group_size = 128;
  std::vector<double> norms = {2.4, 0};
  int refine = 0;
  bool no_torch = false;
};

void run(const Flags& flags, const Common& common) {
  const auto pool = common.pool();
  Json figures = Json::array();
  std::vector<std::vector<std::string>> rows = {{"N", "K", "group", "mse", "refine", "threads", "level",
                                                 "factor s", "solve s", "x LibTorch", "error", "LibTorch's"}};
  for (const double norm : flags.norms) {
    SolveCase which{.rows = flags.rows,
                    .columns = flags.columns,
                    .options = {},
                    .threads = pool->threads(),
                    .with_torch = !flags.no_torch};
    which.options.grid.group_size = flags.group_size;
    which.options.grid.mse = norm;
    which.options.refine = flags.refine;
    const SolveFigure figure = measure_solve(which);
    const auto known = [&](double value) { return flags.no_torch ? Json(nullptr) : Json(value); };
    Json json;
    json["N"] = flags.rows;
    json["K"] = flags.columns;
    json["group_size"] = flags.group_size;
    json["mse"] = norm;
    json["refine"] = flags.refine;
    json["threads"] = pool->threads();
    json["cpu_level"] = name(cpu_level());
    json["factor_seconds"] = figure.factor_seconds;
    json["solve_seconds"] = figure.solve_seconds;
    json["torch_seconds"] = known(figure.torch_seconds);
    json["ratio_vs_torch"] = known(figure.ratio());
    json["error"] = figure.error;
    json["torch_error"] = known(figure.torch_error);
    const auto number = [&](const char* key, int digits) {
      return json.at(key).is_null() ? std::string("-") : fixed(json.at(key).get<double>(), digits);
    };
    rows.push_back({str(flags.rows), str(flags.columns), str(flags.group_size), fixed(norm, 1),
                    str(flags.refine), str(pool->threads()), str(name(cpu_level())),
                    number("factor_seconds", 3), number("solve_seconds", 3), number("ratio_vs_torch", 1),
                    number("error", 6), number("torch_error", 6)});
    figures.push_back(std::move(json));
  }
  common.result(figures, table(rows));
}

}  // namespace

void add_bench_solve(CLI::App& verb) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& solve = *verb.add_subcommand(
      "solve", "A QQQ layer from its Hessian to codes, against the same algorithm in LibTorch's operations");
  const auto size = CLI::Range(int64_t{1}, int64_t{1} << 15);
  solve.add_option("--N", flags->rows, "Rows of the weight")->check(size)->capture_default_str();
  solve.add_option("--K", flags->columns, "Columns of the weight, a multiple of the group size")
      ->check(size)
      ->capture_default_str();
  solve.add_option("--group-size", flags->group_size, "Columns that share a scale, -1 for a whole row")
      ->check(CLI::IsMember({-1, 32, 64, 128}))
      ->capture_default_str();
  solve.add_option("--mse", flags->norms, "Exponents of the scale search, one or more; 0: none")
      ->delimiter(',')
      ->check(number_between(0.0, 16.0));
  solve.add_option("--refine", flags->refine, "Sweeps of a last pass, which LibTorch's does not make")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  solve.add_flag("--no-torch", flags->no_torch, "Leave LibTorch out, which takes most of the time");
  add_common(solve, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
