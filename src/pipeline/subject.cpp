#include "pipeline/subject.h"

namespace gramian {

Subject subject_of(const Model& model) {
  Subject subject{.checkpoint = model.shared_checkpoint(),
                  .model_type = model.family().model_type,
                  .dtype = model.dtype(),
                  .layers = model.survey(),
                  .pauses = {},
                  .prefixes = {},
                  .steps = {},
                  .experts = {},
                  .head = model.head(),
                  .tied = model.tied(),
                  .tied_on_request = model.tied_on_request()};
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    subject.pauses.push_back(model.module_names(i));
    subject.prefixes.push_back(model.layer_prefix(i));
  }
  return subject;
}

}  // namespace gramian
