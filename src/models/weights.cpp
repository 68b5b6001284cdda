#include "models/weights.h"

#include "base/error.h"
#include "base/format.h"

namespace gramian {

Weights::Weights(std::shared_ptr<const Checkpoint> checkpoint, at::ScalarType dtype,
                 QuantizedLinearFactory quantized, bool keep_experts, LinearDecorator decorate)
    : checkpoint_(std::move(checkpoint)),
      dtype_(dtype),
      quantized_(std::move(quantized)),
      keep_experts_(keep_experts),
      decorate_(std::move(decorate)) {}

void Weights::Survey::refuse(const std::string& folder) const {
  if (problems.empty()) return;
  if (problems.size() == 1) throw Error(ErrorKind::corrupt_data, "", problems[0]);
  throw Error(ErrorKind::corrupt_data, folder,
              str(problems.size(), " tensors do not fit config.json:", below(problems)));
}

Weights Weights::surveying(Survey& survey) const {
  Weights copy = *this;
  copy.survey_ = &survey;
  return copy;
}

const StoredTensor* Weights::checked(const std::string& name, const std::vector<int64_t>& shape,
                                     bool integers) const {
  try {
    const StoredTensor& stored = checkpoint_->tensor(name, shape);
    if (integers && stored.dtype != DType::i64) {
      throw Error(ErrorKind::corrupt_data, checkpoint_->folder().string(),
                  str("tensor '", name, "' has type ", dtype_name(stored.dtype), ", expected I64"),
                  "fetch the file again");
    }
    if (!integers && stored.dtype != DType::f32 && stored.dtype != DType::f16 &&
        stored.dtype != DType::bf16 && stored.dtype != DType::f64) {
      throw Error(
          ErrorKind::unsupported, checkpoint_->folder().string(),
          str("tensor '", name, "' has type ", dtype_name(stored.dtype), ", expected F32, F16 or BF16"),
          "use the unquantized checkpoint");
    }
    return &stored;
  } catch (const Error& error) {
    if (survey_ == nullptr) throw;
    survey_->problems.emplace_back(error.what());
    return nullptr;
  }
}

at::Tensor Weights::stored(const std::string& name, const std::vector<int64_t>& shape) const {
  const StoredTensor* found = checked(name, shape);
  return found == nullptr || survey_ != nullptr ? at::Tensor() : found->to_tensor();
}

at::Tensor Weights::integers(const std::string& name, const std::vector<int64_t>& shape) const {
  const StoredTensor* found = checked(name, shape, true);
  return found == nullptr || survey_ != nullptr ? at::Tensor() : found->to_tensor();
}

at::Tensor Weights::tensor(const std::string& name, const std::vector<int64_t>& shape) const {
  const at::Tensor tensor = stored(name, shape);
  return tensor.defined() ? tensor.to(dtype_) : tensor;
}

Linear Weights::linear(const std::string& name, int64_t in, int64_t out, bool bias,
                       const StoredWeight& where) const {
  Linear linear{name, in, out, bias, nullptr, where};
  if (survey_ != nullptr) {
    survey_->linears.push_back(linear);
    if (survey_->is_packed && survey_->is_packed(name)) return linear;
  } else if (quantized_) {
    linear.op = quantized_(*checkpoint_, linear);
  }
  if (linear.op == nullptr) {
    // Checks whole tensors, of which a stacked module reads a part.
    const bool stacked = !where.tensor.empty();
    checked(linear.tensor_name(), stacked ? where.shape : std::vector<int64_t>{out, in});
    if (bias) {
      checked(linear.bias_name(), stacked ? std::vector{where.shape[0], where.shape[where.transposed ? 2 : 1]}
                                          : std::vector<int64_t>{out});
    }
    at::Tensor weight, values;
    if (survey_ == nullptr) {
      weight = source_weight(*checkpoint_, linear).to(dtype_).contiguous();
      if (bias) values = source_bias(*checkpoint_, linear).to(dtype_).contiguous();
    }
    linear.op = std::make_shared<DenseLinear>(weight, values);
  }
  if (decorate_ && survey_ == nullptr) linear.op = decorate_(linear);
  return linear;
}

namespace {

// The module's rows of a matrix or bias of a stack.
at::Tensor own_rows(const Linear& linear, const at::Tensor& all) {
  const StoredWeight& where = linear.stored;
  return all.slice(0, where.first_row, where.first_row + where.row_step * linear.out_features,
                   where.row_step);
}

}  // namespace

at::Tensor source_weight(const Checkpoint& checkpoint, const Linear& linear) {
  const StoredTensor& tensor = checkpoint.tensor(linear.tensor_name());
  const StoredWeight& where = linear.stored;
  if (where.tensor.empty()) return tensor.to_tensor();
  if (where.shape.size() == 2)
    return where.transposed ? tensor.to_tensor().t().contiguous() : tensor.to_tensor();
  const at::Tensor matrix = tensor.matrix(where.matrix);
  return own_rows(linear, where.transposed ? matrix.t() : matrix).contiguous();
}

at::Tensor source_bias(const Checkpoint& checkpoint, const Linear& linear) {
  if (!linear.has_bias) return {};
  const at::Tensor tensor = checkpoint.tensor(linear.bias_name()).to_tensor();
  if (linear.stored.tensor.empty() || tensor.dim() == 1) return tensor;
  return own_rows(linear, tensor.select(0, linear.stored.matrix)).contiguous();
}

}  // namespace gramian
