// Experts that a checkpoint keeps as one tensor, told apart: formats with a name for each expert's matrix need no other source.
#pragma once

#include <memory>

#include "formats/checkpoint.h"
#include "pipeline/subject.h"

namespace gramian {

// Every linear layer that is some rows of a stack's matrix, one behind the other, becomes a tensor NAME.weight of its own in
// subject.checkpoint; no value is copied. Stacks that lie otherwise (transposed, rows in turns, encoded) stay.
void unstack(Subject& subject);

// The same of a model's checkpoint, which is returned as it is where it has no stacks.
std::shared_ptr<const Checkpoint> unstacked(const std::shared_ptr<const Checkpoint>& checkpoint);

}  // namespace gramian
