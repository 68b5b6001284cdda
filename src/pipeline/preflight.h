// What can be known before work starts: everything that is wrong with a job, in one message.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/parallel.h"
#include "formats/checkpoint.h"
#include "models/model.h"
#include "pipeline/importance.h"
#include "pipeline/method.h"
#include "pipeline/output_gguf.h"
#include "pipeline/plan.h"
#include "pipeline/rows.h"
#include "pipeline/subject.h"

namespace gramian {

struct QuantizeJob;

// What the checks leave ready for the job.
struct Prepared {
  const Method* method = nullptr;
  Subject subject;
  std::unique_ptr<const Model> model;  // null for a foreign one
  QuantizePlan plan;
  RowSet rows;                                 // empty for a method without calibration
  std::vector<TokenRow> held_out;              // set aside from them
  std::optional<ModelImportance> importance;   // that a file gives
  std::optional<GgufPlan> gguf;                // of an output that is one file
  std::map<std::string, std::string> digests;  // of the source's tensors; empty without the scan
  // Whether calibration rows go through the model.
  bool runs_forward() const { return method->calibrated() && !importance; }
};

// Checks options, output folder, files, configuration, tensors, shapes, calibration rows and, unless it is switched off, all
// values of the weights, as far as one does not need what another refuses. Throws one Error with all that was found
// (base/problems.h). A checkpoint of more than 4 GiB is searched for NaN and infinity only when nothing else is wrong: that
// takes longer than seconds. Says what will be done and what will not.
Prepared prepare(const QuantizeJob& job, ThreadPool& pool, Log& log);
// The same for a model that another forward runs, on `rows`; nothing is read from `job.source` and `job.calibration`.
Prepared prepare(const QuantizeJob& job, Subject subject, RowSet rows, ThreadPool& pool, Log& log);

// Throws invalid_argument for an output that `format` (nullptr: not known) cannot be written to: there already, among what the job
// reads, in another job's hands, of the wrong kind.
void refuse_output(const QuantizeJob& job, const LinearFormat* format);
// Throws invalid_argument for a checkpoint that is quantized, apart from one that is decoded while it is read
// (formats/encoded_tensor.h).
void refuse_quantized(const Checkpoint& checkpoint);

}  // namespace gramian
