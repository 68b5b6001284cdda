// Checkpoints that run: the engine's own forward.
#include <pybind11/stl/filesystem.h>

#include "bindings.h"
#include "formats/safetensors.h"
#include "pipeline/rows.h"
#include "runtime/resident_model.h"
#include "runtime/sequence.h"
#include "tensor/ops.h"

namespace gramian::python {
namespace {

std::shared_ptr<ResidentModel> open(const std::filesystem::path& folder, const std::string& dtype) {
  const Work work;
  return std::make_shared<ResidentModel>(folder, OpenOptions{.dtype = dtype}, pool());
}

// A row's logits, f32 [tokens, vocab].
at::Tensor logits(ResidentModel& model, const TokenRow& row) {
  if (row.empty()) throw Error(ErrorKind::invalid_argument, "row", "holds no token");
  const Work work;
  refuse_foreign_ids({row}, model.model().spec().vocab, "row");
  return model.logits(model.states({row}));
}

// A row that grows, and the model that it runs through.
struct GrowingRow {
  std::shared_ptr<ResidentModel> model;
  std::unique_ptr<Sequence> sequence;

  GrowingRow(std::shared_ptr<ResidentModel> given, int64_t tokens_max)
      : model(std::move(given)),
        sequence(std::make_unique<Sequence>(*model, SequenceOptions{.tokens_max = tokens_max})) {}

  // f32 [vocab] behind the last of these tokens.
  at::Tensor append(const TokenRow& ids) {
    if (ids.empty()) throw Error(ErrorKind::invalid_argument, "row", "holds no token");
    const Work work;
    refuse_foreign_ids({ids}, model->model().spec().vocab, "row");
    return model->logits(sequence->append(ids)).squeeze(0);
  }
};

}  // namespace

void bind_runtime(py::module_& m) {
  py::class_<ResidentModel, std::shared_ptr<ResidentModel>>(m, "ResidentModel")
      .def(py::init(&open), py::arg("folder"), py::arg("dtype"))
      .def("logits", &logits, py::arg("row"))
      .def_property_readonly("vocab", [](const ResidentModel& model) { return model.model().spec().vocab; })
      .def_property_readonly("model_type",
                             [](const ResidentModel& model) { return model.model().family().model_type; });
  py::class_<GrowingRow>(m, "GrowingRow")
      .def(py::init<std::shared_ptr<ResidentModel>, int64_t>(), py::arg("model"), py::arg("tokens_max"))
      .def("append", &GrowingRow::append, py::arg("ids"));
}

}  // namespace gramian::python
