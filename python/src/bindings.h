// What the bindings share. Tensors cross without a copy; work runs without the interpreter's lock and without gradients.
#pragma once

#include <ATen/core/grad_mode.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "solve/quantized.h"

namespace gramian::python {

namespace py = pybind11;
using Json = nlohmann::ordered_json;

// Releases the interpreter's lock for the lifetime of the object.
class Work {
  py::gil_scoped_release released_;
  at::NoGradGuard no_grad_;
};

// The threads of the library's own kernels: as many as torch.get_num_threads() says when it is first used.
std::shared_ptr<ThreadPool> pool();

// Options by GPT-QModel's names, a JSON object (docs/recipes.md), for the method's defaults; settled by the format. Throws with
// everything that is wrong with them.
SolveOptions solve_options(const std::string& method, const std::string& format, const std::string& options);

void bind_statistics(py::module_& m);
void bind_solve(py::module_& m);
void bind_qqq(py::module_& m);
void bind_files(py::module_& m);
void bind_runtime(py::module_& m);
void bind_quantize(py::module_& m);

}  // namespace gramian::python
