// A checkpoint as a GGUF file to be: the file's metadata and tensors, and which tensors of the checkpoint they are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/parallel.h"
#include "formats/checkpoint.h"
#include "formats/gguf/gguf.h"

namespace gramian::gguf {

// Where the values of one tensor come from: one tensor of the checkpoint, or one for each expert of a stack.
struct TensorSource {
  std::map<int64_t, std::string> names;  // by expert; -1: the whole tensor
  int64_t heads = 0;  // rows are heads whose rotary halves are to be interleaved; 0: they stay
  bool plus_one = false;
  std::vector<float> values = {};  // instead of a tensor, of which the checkpoint has none
};

// Where a tensor of the checkpoint goes.
struct TensorPlace {
  size_t tensor = 0;   // of ModelPlan::types
  int64_t expert = 0;  // which matrix of a stack; 0 for a whole tensor
};

struct ModelPlan {
  Metadata metadata;
  std::vector<TensorType> types;
  std::vector<TensorSource> sources;
  std::map<std::string, TensorPlace> places;  // by the checkpoint's names
};

// The type of a matrix by its name in the checkpoint. Vectors, norms and routers are F32 without being asked for.
using ChooseType = std::function<const Codec*(const std::string& name, int64_t columns)>;

// general.file_type of a file whose matrices are of this type.
uint32_t file_type(const Codec& codec);

// Everything but general.file_type, which goes with the types. `name`: general.name. Throws unsupported for a family or a tensor that has
// no place in GGUF and for experts of one stack that would have several types, corrupt_data for a checkpoint that contradicts itself.
ModelPlan plan_model(const Checkpoint& checkpoint, const std::string& name, const ChooseType& type, Log& log);

// Rotary pairs that stand a half head apart -> side by side, and back. rows [heads * size, ...] of any type; the number of rows is a
// multiple of 2 * heads.
at::Tensor interleave(const at::Tensor& rows, int64_t heads);
at::Tensor deinterleave(const at::Tensor& rows, int64_t heads);

// The values of plan.sources[tensor], encoded, in order. `importance` by the file's names, f32 [columns], for those that have some.
using Importance = std::function<const std::vector<float>*(const std::string& gguf_name)>;
void append_tensor(const Checkpoint& checkpoint, const ModelPlan& plan, size_t tensor,
                   const Importance& importance, ThreadPool& pool, const Append& append);

}  // namespace gramian::gguf
