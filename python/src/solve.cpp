// Solvers on their own: a weight and a Hessian in, codes and scales out.
#include "bindings.h"
#include "cli/solve_flags.h"
#include "formats/linear_format.h"
#include "pipeline/method.h"
#include "pipeline/recipe.h"
#include "solve/factor.h"
#include "solve/refine.h"
#include "solve/solvers.h"

namespace gramian::python {

SolveOptions solve_options(const std::string& method, const std::string& format, const std::string& options) {
  const Recipe recipe = parse_recipe(options, "options.json");
  recipe.problems.refuse();
  ModuleSettings settings{find_method(method).defaults, {}};
  settings = patched(settings, recipe.defaults);
  return find_format(format).settle(settings.solve, DType::bf16);
}

namespace {

void refuse_shapes(const at::Tensor& weight, const std::optional<at::Tensor>& hessian) {
  if (weight.dim() != 2 || !weight.is_floating_point())
    throw Error(ErrorKind::invalid_argument, "weight", "expected a float matrix [out, in]");
  if (!hessian) return;
  const int64_t k = weight.size(1);
  if (hessian->dim() != 2 || hessian->size(0) != k || hessian->size(1) != k ||
      hessian->scalar_type() != at::kFloat)
    throw Error(ErrorKind::invalid_argument, "hessian",
                str("expected float32 [", k, ", ", k, "], in times in"),
                "pass what HessianAccumulator.merge() gives");
}

QuantizedLinear solve(const at::Tensor& given, const std::optional<at::Tensor>& hessian, int64_t tokens,
                      const std::string& method, const std::string& format, const std::string& options) {
  refuse_shapes(given, hessian);
  const SolveOptions solve = solve_options(method, format, options);
  const Work work;
  const at::Tensor weight = given.detach();
  if (!hessian) return solve_rtn(weight, solve.grid, *pool());
  const at::Tensor h = hessian->detach();
  const at::Tensor order = column_order(h, solve.order, solve.grid.group_size);
  const Factor factor = factorize(h, solve.damp_percent, solve.damp_step, pool().get(), order);
  if (!factor.ok())
    throw Error(ErrorKind::numerical, "hessian", "does not factor with damping below 1", "give more tokens");
  QuantizedLinear solved = solve_gptq(weight, factor, std::max<int64_t>(tokens, 1), solve, *pool());
  if (solve.refine > 0) refine(solved, weight, h, solve, *pool());
  return solved;
}

std::optional<at::Tensor> maybe(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

void bind_solve(py::module_& m) {
  py::class_<QuantizedLinear>(m, "QuantizedLinear",
                              "Codes and scales of one weight [N, K], as a solver chose them.")
      .def_readonly("codes", &QuantizedLinear::codes, "int8 [N, K], signed: from -2^(bits-1) on.")
      .def_readonly("scale", &QuantizedLinear::scale, "float32 [N, groups].")
      .def_property_readonly(
          "zero", [](const QuantizedLinear& q) { return maybe(q.zero); },
          "int8 [N, groups], signed as the codes; None on symmetric grids.")
      .def_property_readonly(
          "group_index", [](const QuantizedLinear& q) { return maybe(q.group_index); },
          "int32 [K], the group of each column; None where it is k // group_size.")
      .def_readonly("bits", &QuantizedLinear::bits)
      .def_readonly("group_size", &QuantizedLinear::group_size, "Resolved: K for one scale per row.")
      .def_readonly("loss", &QuantizedLinear::loss, "GPTQ's loss per token; NaN without a Hessian.")
      .def_readonly("damp", &QuantizedLinear::damp, "What was added to the Hessian's diagonal.")
      .def_readonly("dead_columns", &QuantizedLinear::dead_columns)
      .def(
          "weight",
          [](const QuantizedLinear& q) {
            const Work work;
            return q.weight();
          },
          "(codes - zero) * scale, float32 [N, K].");
  m.def("solve", &solve, py::arg("weight"), py::arg("hessian"), py::arg("tokens"), py::arg("method"),
        py::arg("format"), py::arg("options"));
}

}  // namespace gramian::python
