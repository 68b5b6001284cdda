// Statistics of linear layers' inputs.
#include "bindings.h"
#include "stats/hessian.h"
#include "stats/imatrix.h"
#include "stats/local_hessian.h"
#include "stats/patch_rows.h"

namespace gramian::python {
namespace {

AccumulationSettings settings(const std::string& input, const std::optional<std::string>& staging) {
  AccumulationSettings settings{.input = parse_hessian_input(input)};
  if (staging) settings.staging = parse_staging(*staging);
  return settings;
}

// Adds `rows`, of which `keep` says which count.
template <class Sums>
void add(Sums& sums, const at::Tensor& rows, const std::optional<at::Tensor>& keep, int lane) {
  const Work work;
  sums.add(lane, rows.detach(), keep.value_or(at::Tensor()), pool().get());
}

template <class Sums>
at::Tensor merge(Sums& sums) {
  const Work work;
  return sums.merge();
}

}  // namespace

void bind_statistics(py::module_& m) {
  m.def(
      "patch_rows",
      [](const at::Tensor& input, const std::array<int64_t, 2>& kernel, const std::array<int64_t, 2>& stride,
         const std::array<int64_t, 2>& padding, const std::array<int64_t, 2>& dilation, int64_t groups) {
        const Work work;
        return patch_rows(input.detach(), {kernel, stride, padding, dilation, groups});
      },
      py::arg("input"), py::arg("kernel"), py::arg("stride"), py::arg("padding"), py::arg("dilation"),
      py::arg("groups"));
  py::class_<HessianAccumulator, std::shared_ptr<HessianAccumulator>>(m, "HessianAccumulator", R"(
H = 2/n sum(x x^T) over the n token vectors x that a linear layer receives, [in_features, in_features] float32.

in_features: columns of the rows; lanes: places that add at the same time, one float32 [in, in] sum each.
hessian_input_dtype: "auto", "float32" or "bfloat16", the type of the products' factors; staging_dtype: None, "float32" or
"bfloat16", what rows are rounded to first. Raises GramianError for other words. Any method may be called from several threads.)")
      .def(py::init([](int64_t in_features, int lanes, const std::string& input,
                       const std::optional<std::string>& staging) {
             if (in_features < 1 || lanes < 1)
               throw Error(ErrorKind::invalid_argument, "HessianAccumulator",
                           str("in_features ", in_features, " and lanes ", lanes, " must be positive"));
             return std::make_shared<HessianAccumulator>(in_features, lanes, settings(input, staging));
           }),
           py::arg("in_features"), py::arg("lanes") = 1, py::arg("hessian_input_dtype") = "auto",
           py::arg("staging_dtype") = py::none())
      .def("add", &add<HessianAccumulator>, py::arg("rows"), py::arg("keep") = py::none(),
           py::arg("lane") = 0, R"(
Adds rows [..., in_features] of any float type. keep: None, or bool or integers over the leading dimensions; tokens where it is 0
do not count. Raises GramianError (kind "numerical") for values that are not finite, naming the first row, and for other shapes;
nothing of the batch is then added.)")
      .def("merge", &merge<HessianAccumulator>, R"(
H, float32 [in_features, in_features], exactly symmetric; zeros when nothing was added. Not to be modified. More rows may be added
and merged later.)")
      .def_property_readonly("tokens", &HessianAccumulator::tokens, "Token vectors that counted so far.");

  py::class_<LocalHessianAccumulator, std::shared_ptr<LocalHessianAccumulator>>(m, "LocalHessianAccumulator",
                                                                                R"(
sum(x_b x_b^T) over the token vectors, for each block b of 16 input columns: what scales of NVFP4's blocks are weighted with.
in_features, lanes, hessian_input_dtype: as HessianAccumulator's.)")
      .def(py::init([](int64_t in_features, int lanes, const std::string& input) {
             if (in_features < 1 || lanes < 1)
               throw Error(ErrorKind::invalid_argument, "LocalHessianAccumulator",
                           str("in_features ", in_features, " and lanes ", lanes, " must be positive"));
             return std::make_shared<LocalHessianAccumulator>(in_features, lanes,
                                                              settings(input, std::nullopt));
           }),
           py::arg("in_features"), py::arg("lanes") = 1, py::arg("hessian_input_dtype") = "auto")
      .def("add", &add<LocalHessianAccumulator>, py::arg("rows"), py::arg("keep") = py::none(),
           py::arg("lane") = 0, "Adds rows [..., in_features], as HessianAccumulator.add.")
      .def("merge", &merge<LocalHessianAccumulator>,
           "The sums, float32 [in_features / 16, rounded up, 16, 16]; columns beyond in_features count as "
           "zeros.")
      .def_property_readonly(
          "tokens", [](const LocalHessianAccumulator& sums) { return sums.tokens(); },
          "Token vectors that counted so far.");

  py::class_<ImatrixAccumulator, std::shared_ptr<ImatrixAccumulator>>(m, "ImatrixAccumulator", R"(
sum(x^2) per input column, float64 [in_features]: llama.cpp's importance matrix. Divide by `tokens` for the mean.)")
      .def(py::init([](int64_t in_features, int lanes) {
             return std::make_shared<ImatrixAccumulator>(in_features, lanes);
           }),
           py::arg("in_features"), py::arg("lanes") = 1)
      .def("add", &add<ImatrixAccumulator>, py::arg("rows"), py::arg("keep") = py::none(),
           py::arg("lane") = 0, "Adds rows [..., in_features], as HessianAccumulator.add.")
      .def("merge", &merge<ImatrixAccumulator>, "The sums, float64 [in_features].")
      .def_property_readonly(
          "tokens", [](const ImatrixAccumulator& sums) { return sums.tokens(); },
          "Token vectors that counted so far.");
}

}  // namespace gramian::python
