// The QQQ format and its runtime.
#include "formats/qqq.h"

#include "bindings.h"
#include "formats/linear_format.h"
#include "runtime/qqq_linear.h"

namespace gramian::python {
namespace {

using Parts = std::map<std::string, at::Tensor>;

at::Tensor or_none(const std::optional<at::Tensor>& tensor) {
  return tensor ? tensor->detach() : at::Tensor();
}

Parts pack(const QuantizedLinear& module, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
           const std::string& format, const std::string& options, const std::string& name) {
  const SolveOptions solve = solve_options(format == "qqq" ? "qqq" : "gptq", format, options);
  const Work work;
  const LinearShape shape{weight.size(0), weight.size(1), bias.has_value(), DType::f32};
  if (const std::string reason =
          find_format(format).unfit_reason(shape.out_features, shape.in_features, solve.grid);
      !reason.empty())
    throw Error(ErrorKind::unsupported, name, reason);
  return find_format(format).pack(module, {name, shape, weight.detach(), or_none(bias)}, solve.grid);
}

at::Tensor unpack(const Parts& parts, int64_t n, int64_t k, const std::string& format,
                  const std::string& options, const std::string& name) {
  const SolveOptions solve = solve_options(format == "qqq" ? "qqq" : "gptq", format, options);
  const Work work;
  return find_format(format).unpack(parts, n, k, solve.grid, name).weight;
}

std::shared_ptr<QqqLinear> make_linear(const at::Tensor& B, const at::Tensor& s_channel,
                                       const std::optional<at::Tensor>& s_group,
                                       const std::optional<at::Tensor>& bias, int64_t n, int64_t k,
                                       const std::string& name) {
  const Work work;
  const qqq::Packed packed{B, s_channel, or_none(s_group), or_none(bias)};
  return std::make_shared<QqqLinear>(qqq::read_codes(packed, n, k, name), QqqRuntime{.pool = pool()}, name);
}

}  // namespace

void bind_qqq(py::module_& m) {
  m.def("pack", &pack, py::arg("module"), py::arg("weight"), py::arg("bias"), py::arg("format"),
        py::arg("options"), py::arg("name"));
  m.def("unpack", &unpack, py::arg("parts"), py::arg("out_features"), py::arg("in_features"),
        py::arg("format"), py::arg("options"), py::arg("name"));
  py::class_<QqqLinear, std::shared_ptr<QqqLinear>>(m, "QqqKernel")
      .def(py::init(&make_linear), py::arg("B"), py::arg("s_channel"), py::arg("s_group"), py::arg("bias"),
           py::arg("out_features"), py::arg("in_features"), py::arg("name"))
      .def("forward",
           [](const QqqLinear& linear, const at::Tensor& x) {
             const Work work;
             return linear.forward(x.detach());
           })
      .def_property_readonly("bytes", &QqqLinear::bytes);
}

}  // namespace gramian::python
