// gramian._core: everything that the Python package takes from the engine. gramian/*.py says what users see of it.
#include "bindings.h"
#include "cli/app.h"
#include "ranks.h"
#include "tensor/ops.h"

namespace gramian::python {
namespace {

const char* name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return "invalid_argument";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::corrupt_data:
      return "corrupt_data";
    case ErrorKind::io:
      return "io";
    case ErrorKind::numerical:
      return "numerical";
    case ErrorKind::interrupted:
      return "interrupted";
    case ErrorKind::unsound:
      return "unsound";
    case ErrorKind::internal:
      break;
  }
  return "internal";
}

void raise(const Error& error) {
  const py::object type = py::module_::import("gramian.errors").attr("GramianError");
  const py::object raised = type(error.what(), py::arg("kind") = name_of(error.kind()),
                                 py::arg("subject") = error.where(), py::arg("remedy") = error.hint());
  PyErr_SetObject(type.ptr(), raised.ptr());
}

int run_cli(std::vector<std::string> arguments, const py::object& group) {
  std::unique_ptr<GroupRanks> ranks;
  if (!group.is_none()) ranks = std::make_unique<GroupRanks>(group);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const Work work;
  return cli::run(static_cast<int>(arguments.size()), pointers.data(), ranks.get());
}

}  // namespace

std::shared_ptr<ThreadPool> pool() {
  static const auto shared = std::make_shared<ThreadPool>(tensor::threads());
  return shared;
}

}  // namespace gramian::python

PYBIND11_MODULE(_core, m) {
  namespace py = pybind11;
  m.attr("__version__") = GRAMIAN_VERSION;
  m.attr("torch_version") = GRAMIAN_TORCH_VERSION;
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const gramian::Error& known) {
      gramian::python::raise(known);
    }
  });
  m.def("run_cli", &gramian::python::run_cli, py::arg("arguments"), py::arg("group") = py::none());
  gramian::python::bind_statistics(m);
  gramian::python::bind_solve(m);
  gramian::python::bind_qqq(m);
  gramian::python::bind_files(m);
  gramian::python::bind_runtime(m);
  gramian::python::bind_quantize(m);
}
