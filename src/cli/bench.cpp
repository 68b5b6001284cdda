// gramian bench gram|factor: the kernels of this processor beside LibTorch. The other benches are in files of their own.
#include <functional>
#include <vector>

#include "base/format.h"
#include "cli/bench_run.h"
#include "cli/bench_solve.h"
#include "cli/common.h"
#include "eval/kernel_speed.h"

namespace gramian::cli {
namespace {

struct Flags {
  std::vector<int64_t> columns = {896, 2048, 4096};
  int64_t tokens = 512;
  bool quick = false;
};

Json document(const KernelFigure& figure) {
  const auto known = [](bool is, double value) { return is ? Json(value) : Json(nullptr); };
  Json json;
  json["name"] = figure.name;
  json["dtype"] = figure.dtype == DType::bf16 ? "bfloat16" : "float32";
  json["K"] = figure.columns;
  json["T"] = figure.tokens;
  json["threads"] = figure.threads;
  json["cpu_level"] = name(figure.level);
  json["ratio_vs_torch"] = figure.ratio();
  json["gflops"] = figure.operations_per_second() / 1e9;
  json["peak_share"] = known(figure.peak > 0, figure.peak_share());
  json["error"] = figure.error;
  json["torch_error"] = figure.torch_error;
  json["scaling"] = known(figure.scaling > 0, figure.scaling);
  return json;
}

std::string text(const Json& figures) {
  std::vector<std::vector<std::string>> rows = {{"kernel", "dtype", "K", "T", "threads", "level",
                                                 "x LibTorch", "Gflop/s", "of peak", "error / LibTorch's",
                                                 "x 1 thread"}};
  for (const Json& figure : figures) {
    const auto number = [&](const char* key, int digits) {
      return figure.at(key).is_null() ? std::string("-") : fixed(figure.at(key).get<double>(), digits);
    };
    rows.push_back({figure.at("name"), figure.at("dtype"), figure.at("K").dump(), figure.at("T").dump(),
                    figure.at("threads").dump(), figure.at("cpu_level"), number("ratio_vs_torch", 2),
                    number("gflops", 1), number("peak_share", 3),
                    fixed(figure.at("error").get<double>() / figure.at("torch_error").get<double>(), 2),
                    number("scaling", 2)});
  }
  return table(rows);
}

// One thread, then as many as were asked for.
std::vector<int> thread_counts(int asked) {
  return asked == 1 ? std::vector<int>{1} : std::vector<int>{1, asked};
}

void run(const Flags& flags, const Common& common, const std::vector<DType>& types,
         const std::function<KernelFigure(const KernelCase&)>& measure, int repeats) {
  const auto pool = common.pool();
  if (flags.quick || cpu_level() == CpuLevel::reference) repeats = 1;
  Json figures = Json::array();
  for (const int64_t columns : flags.columns) {
    for (const DType type : types) {
      for (const bool hard : {false, true}) {
        for (const int threads : thread_counts(pool->threads())) {
          figures.push_back(document(measure({.columns = columns,
                                              .tokens = flags.tokens,
                                              .dtype = type,
                                              .level = cpu_level(),
                                              .threads = threads,
                                              .hard = hard,
                                              .repeats = repeats})));
        }
      }
    }
  }
  common.result(figures, text(figures));
}

CLI::App& add_kernel(CLI::App& verb, const std::string& name, const std::string& help,
                     const std::shared_ptr<Flags>& flags) {
  CLI::App& kernel = *verb.add_subcommand(name, help);
  kernel.add_option("--K", flags->columns, "Columns of the matrix, one or more")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 15))
      ->capture_default_str();
  kernel.add_flag("--quick", flags->quick, "Time everything once: to try it out, not to measure");
  return kernel;
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App& verb = *app.add_subcommand("bench",
                                       "Speed and error of the kernels in use beside LibTorch's, and the "
                                       "speed of a model (GRAMIAN_CPU_LEVEL chooses other kernels)");
  verb.require_subcommand(1);
  const auto flags = std::make_shared<Flags>();
  const auto common = std::make_shared<Common>();
  CLI::App& gram = add_kernel(verb, "gram", "The sum of x xᵀ over token rows, against addmm_ in fp32", flags);
  gram.add_option("--T", flags->tokens, "Token rows of a batch")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  add_common(gram, common,
             [flags, common] { run(*flags, *common, {DType::f32, DType::bf16}, measure_gram, 7); });
  CLI::App& factor = add_kernel(
      verb, "factor", "The Hessian's inverse factor, against cholesky, cholesky_inverse, cholesky", flags);
  add_common(factor, common, [flags, common] { run(*flags, *common, {DType::f32}, measure_factor, 3); });
  add_bench_solve(verb);
  add_bench_run(verb);
}

}  // namespace gramian::cli
