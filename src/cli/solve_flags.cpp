#include "cli/solve_flags.h"

#include <algorithm>

#include "base/error.h"
#include "pipeline/method.h"

namespace gramian::cli {
namespace {

ColumnOrder parse_order(const std::string& text) {
  for (const ColumnOrder order : {ColumnOrder::natural, ColumnOrder::activation, ColumnOrder::group_aware}) {
    if (text == to_text(order)) return order;
  }
  throw Error(ErrorKind::invalid_argument, "--order", str("'", text, "' is not known"),
              "natural, activation or group-aware");
}

template <class Value, class Given>
void take(Value& value, const Given& given) {
  if (given) value = *given;
}

std::string method_help() {
  std::string help = "Method:";
  for (const Method& method : all_methods()) help += " " + method.name + " = " + method.summary + ";";
  help.pop_back();
  return help;
}

std::string format_help() {
  std::string help = "How the result lies on disk (default: the method's):";
  for (const LinearFormat* format : all_formats())
    help += str(" ", format->name(), " = ", format->summary(), ";");
  help.pop_back();
  return help;
}

}  // namespace

void add_solve_flags(CLI::App& verb, QuantizeJob& job, SolveFlags& flags) {
  verb.add_option("--method", job.method, method_help())->capture_default_str();
  verb.add_option("--format", flags.format, format_help());
  verb.add_option("--bits", flags.bits, "Bits of a weight: 4 (default), or 2, 3, 8 where the format has them")
      ->check(CLI::IsMember({2, 3, 4, 8}));
  verb.add_option(
          "--activation-bits", flags.activation_bits,
          "8: the runtime rounds activations to int8 (qqq always; compressed-tensors can), 16: it does not")
      ->check(CLI::IsMember({8, 16}));
  auto* symmetric = verb.add_flag("--sym", flags.symmetric, "Grids without zero points (default)");
  verb.add_flag("--asym", flags.asymmetric, "Grids with zero points: gptq, gptq_v2, compressed-tensors W4A16")
      ->excludes(symmetric);
  verb.add_option(
          "--group-size", flags.group_size,
          "Columns that share a scale: 128 (default), -1 for a whole row; qqq has these two, other formats "
          "16 to 1024")
      ->check(CLI::IsMember({-1, 16, 32, 64, 128, 256, 512, 1024}));
  verb.add_option(
          "--mse", flags.mse,
          "Exponent of the scale search's error; 0 scales by the largest magnitude (default 2.4; gptq: 0)")
      ->check(number_between(0.0, 16.0));
  verb.add_option("--damp-percent", flags.damp_percent,
                  "Share of the Hessian's mean diagonal added to it (default 0.005; gptq: 0.05)")
      ->check(number_between(1e-12, 0.999999));
  verb.add_option(
          "--damp-step", flags.damp_step,
          "Increase of --damp-percent while the Hessian does not factor; 0: none (default 0.001; gptq: 0.01)")
      ->check(number_between(0.0, 1.0));
  auto* order = verb.add_option("--order", flags.order,
                                "Order in which columns are solved: natural (qqq), group-aware = by the "
                                "Hessian's diagonal inside groups and "
                                "among groups (gptq), activation = by it over all columns, which needs a "
                                "stored group of each column or "
                                "--static-groups");
  verb.add_flag("--desc-act", flags.desc_act, "Other tools' name for --order activation")->excludes(order);
  verb.add_flag("--static-groups", flags.static_groups,
                "Take all group scales before any error compensation");
  verb.add_option("--refine", flags.refine,
                  "Sweeps of a last pass over codes and scales that only lowers the error against the "
                  "Hessian; 0: none")
      ->check(CLI::Range(0, 100));
  verb.add_flag_callback(
      "--no-refine-scales", [&flags] { flags.refine_scales = false; },
      "Leave the scales in that pass as they are");
  verb.add_option(
          "--fallback", flags.fallback,
          "How modules that calibration did not reach are rounded: rtn, midpoint, mean, median, stdclip")
      ->capture_default_str();
  verb.add_option(
          "--fallback-smoother", flags.smoother,
          "What tames their outliers first: none, percentile, percentile_asym, mad, outlier, softnorm, log, "
          "row, column, mse, with numbers behind colons (mad:2.5); groups below 128 are left alone")
      ->capture_default_str();
}

void settle_solve(const SolveFlags& flags, QuantizeJob& job) {
  const auto& methods = all_methods();
  const auto method =
      std::find_if(methods.begin(), methods.end(), [&](const Method& one) { return one.name == job.method; });
  if (method == methods.end()) return;
  job.format = flags.format.value_or(method->format);
  SolveOptions& solve = job.solve = method->defaults;
  take(solve.grid.bits, flags.bits);
  take(solve.grid.activation_bits, flags.activation_bits);
  take(solve.grid.group_size, flags.group_size);
  take(solve.grid.mse, flags.mse);
  take(solve.damp_percent, flags.damp_percent);
  take(solve.damp_step, flags.damp_step);
  take(solve.refine, flags.refine);
  solve.refine_scales = flags.refine_scales;
  solve.grid.symmetric = !flags.asymmetric;
  solve.static_groups = flags.static_groups;
  if (flags.desc_act) solve.order = ColumnOrder::activation;
  if (flags.order) solve.order = parse_order(*flags.order);
  if (solve.grid.group_size == -1 && solve.order == ColumnOrder::group_aware) {
    if (flags.order)
      throw Error(ErrorKind::invalid_argument, "--order", "group-aware needs groups",
                  "leave --group-size -1 out, or choose another order");
    solve.order = ColumnOrder::natural;
  }
  job.fallback = {parse_fallback_strategy(flags.fallback), parse_smoother(flags.smoother)};
}

}  // namespace gramian::cli
