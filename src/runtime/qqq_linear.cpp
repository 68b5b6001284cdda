#include "runtime/qqq_linear.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "kernels/w4a8/w4a8.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// Channels of one task with few rows: enough to read for the task to cost nothing.
constexpr int64_t kFewChannels = 64;
constexpr int64_t kQuantizeRows = 4 * w4a8::kOperandRows;
// Bound of the int8 copy of the activations.
constexpr int64_t kScratchBytes = int64_t{4} << 20;

int64_t tiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

w4a8::Activation activation(at::ScalarType type, const std::string& name) {
  switch (type) {
    case at::kFloat:
      return w4a8::Activation::f32;
    case at::kHalf:
      return w4a8::Activation::f16;
    case at::kBFloat16:
      return w4a8::Activation::bf16;
    default:
      throw Error(ErrorKind::invalid_argument, name,
                  str("expected activations of f32, f16 or bf16, found ", c10::toString(type)));
  }
}

}  // namespace

// The products of one input with several layers.
class QqqProduct {
 public:
  QqqProduct(const std::vector<const QqqLinear*>& layers, const at::Tensor& x)
      : layers_(layers), pool_(*layers[0]->runtime_.pool), level_(layers[0]->runtime_.level) {
    const QqqLinear& first = *layers[0];
    type_ = activation(x.scalar_type(), first.name_);
    for (const QqqLinear* layer : layers) {
      if (x.dim() < 1 || x.size(-1) != layer->weights_.k) {
        throw Error(ErrorKind::invalid_argument, layer->name_,
                    gramian::str("expected activations [.., ", layer->weights_.k, "], found ", x.sizes()));
      }
    }
    if (!x.is_cpu())
      throw Error(ErrorKind::invalid_argument, first.name_, "expected activations in host memory");
    k_ = first.weights_.k;
    element_ = static_cast<int64_t>(x.element_size());
    input_ = x.contiguous();
    x_ = static_cast<const std::byte*>(input_.const_data_ptr());
    rows_ = input_.numel() / k_;
    std::vector<int64_t> shape = x.sizes().vec();
    for (const QqqLinear* layer : layers) {
      shape.back() = layer->weights_.channels;
      outputs_.push_back(tensor::empty(shape, x.scalar_type()));
      y_.push_back(static_cast<std::byte*>(outputs_.back().mutable_data_ptr()));
    }
  }

  std::vector<at::Tensor> run() {
    if (rows_ <= w4a8::kFewRows) {
      if (rows_ > 0) run_few();
    } else {
      const int64_t block = std::max(kScratchBytes / k_ / kQuantizeRows, int64_t{1}) * kQuantizeRows;
      for (int64_t begin = 0; begin < rows_; begin += block) run_many(begin, std::min(block, rows_ - begin));
    }
    return std::move(outputs_);
  }

 private:
  // Calls work(index of the layer, first channel, channels) on the pool for parts of `part` channels of every layer.
  template <class Work>
  void each_part(int64_t part, int64_t repeats, const Work& work) const {
    int64_t parts = 0;
    for (const QqqLinear* layer : layers_) parts += tiles(layer->weights_.channels, part);
    pool_.run(parts * repeats, [&](int64_t task) {
      int64_t index = task / repeats;
      size_t layer = 0;
      for (int64_t own = 0; index >= (own = tiles(layers_[layer]->weights_.channels, part)); ++layer)
        index -= own;
      const int64_t first = index * part;
      work(layer, first, std::min(part, layers_[layer]->weights_.channels - first), task % repeats);
    });
  }

  void run_few() {
    std::vector<int8_t> q(static_cast<size_t>(rows_ * k_));
    float scale[w4a8::kFewRows];
    w4a8::quantize_rows(level_, type_, x_, rows_, k_, q.data(), scale);
    each_part(kFewChannels, 1, [&](size_t index, int64_t first, int64_t count, int64_t) {
      int32_t acc[w4a8::kFewRows * kFewChannels];
      w4a8::multiply_few(level_, layers_[index]->weights_, first, count, q.data(), rows_, acc);
      rescale({.layer = index, .row = 0, .rows = rows_, .first = first, .channels = count}, acc, scale);
    });
  }

  void run_many(int64_t begin, int64_t rows) {
    const auto operand =
        std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(w4a8::operand_bytes(level_, rows, k_)));
    std::vector<int32_t> sums(static_cast<size_t>(rows));
    std::vector<float> scales(static_cast<size_t>(rows));
    const int64_t stride = w4a8::operand_stride(level_, k_);
    pool_.run(tiles(rows, kQuantizeRows), [&](int64_t task) {
      const int64_t row = task * kQuantizeRows, count = std::min(kQuantizeRows, rows - row);
      const auto q = std::make_unique_for_overwrite<int8_t[]>(static_cast<size_t>(count * k_));
      w4a8::quantize_rows(level_, type_, x_ + (begin + row) * k_ * element_, count, k_, q.get(),
                          scales.data() + row);
      w4a8::arrange_rows(level_, q.get(), count, k_, operand.get() + row * stride, sums.data() + row);
    });
    each_part(w4a8::kManyChannels, tiles(rows, w4a8::kManyRows),
              [&](size_t index, int64_t first, int64_t count, int64_t part) {
                const int64_t row = part * w4a8::kManyRows, held = std::min(w4a8::kManyRows, rows - row);
                alignas(64) int32_t acc[w4a8::kManyRows * w4a8::kManyChannels];
                w4a8::multiply_many(level_, layers_[index]->weights_, first, operand.get() + row * stride,
                                    sums.data() + row, held, acc);
                rescale({.layer = index, .row = begin + row, .rows = held, .first = first, .channels = count},
                        acc, scales.data() + row);
              });
  }

  struct Part {
    size_t layer;
    int64_t row, rows, first, channels;
  };
  void rescale(const Part& part, const int32_t* acc, const float* scale) const {
    const QqqLinear& layer = *layers_[part.layer];
    const int64_t n = layer.weights_.channels;
    const float* bias = layer.bias_for(input_.scalar_type());
    w4a8::rescale(level_, type_, acc, part.rows, part.channels, scale,
                  layer.s_channel_.const_data_ptr<float>() + part.first,
                  bias != nullptr ? bias + part.first : nullptr,
                  y_[part.layer] + (part.row * n + part.first) * element_, n);
  }

  const std::vector<const QqqLinear*>& layers_;
  ThreadPool& pool_;
  CpuLevel level_;
  w4a8::Activation type_;
  int64_t k_ = 0, rows_ = 0, element_ = 0;
  at::Tensor input_;
  const std::byte* x_ = nullptr;
  std::vector<at::Tensor> outputs_;
  std::vector<std::byte*> y_;
};

QqqLinear::QqqLinear(const qqq::Codes& codes, QqqRuntime runtime, std::string name)
    : runtime_(std::move(runtime)), name_(std::move(name)) {
  GRAMIAN_CHECK(runtime_.pool != nullptr && runtime_.arena != nullptr, name_);
  GRAMIAN_CHECK(codes.values.dim() == 2 && codes.values.scalar_type() == at::kChar, name_);
  const int64_t n = codes.values.size(0), k = codes.values.size(1);
  GRAMIAN_CHECK(
      codes.s_channel.scalar_type() == at::kFloat && codes.s_channel.sizes() == at::IntArrayRef({n}), name_);
  GRAMIAN_CHECK(n % w4a8::kManyChannels == 0 && k % 32 == 0, name_, " [", n, ", ", k, "]");
  if (k > w4a8::kMaxInFeatures) {
    throw Error(ErrorKind::unsupported, name_,
                str(k, " inputs: 32 bits hold the sum of at most ", w4a8::kMaxInFeatures, " int8 products"),
                "leave this module unquantized");
  }
  weights_ = {.channels = n, .k = k};
  codes_ = runtime_.arena->take(n * k / 2);
  auto* packed = reinterpret_cast<uint8_t*>(codes_.get());
  w4a8::pack_codes(codes.values.contiguous().const_data_ptr<int8_t>(), n, k, packed);
  weights_.codes = packed;
  if (codes.ratios.defined()) {
    GRAMIAN_CHECK(codes.ratios.sizes() == at::IntArrayRef({k / w4a8::kGroup, n}), name_);
    ratios_ = runtime_.arena->take(n * k / w4a8::kGroup * 2);
    auto* ratios = reinterpret_cast<uint16_t*>(ratios_.get());
    if (!w4a8::pack_ratios(codes.ratios.contiguous().const_data_ptr<float>(), n, k, ratios)) {
      throw Error(ErrorKind::unsupported, name_ + ".s_group",
                  "holds ratios that f16, the type of the format, does not give the same weights for",
                  "quantize the model again");
    }
    weights_.ratios = ratios;
  }
  s_channel_ = codes.s_channel.contiguous();
  if (codes.bias.defined()) {
    bias_f32_ = codes.bias.to(at::kFloat).contiguous();
    bias_f16_ = codes.bias.to(at::kHalf).to(at::kFloat).contiguous();
    bias_bf16_ = codes.bias.to(at::kBFloat16).to(at::kFloat).contiguous();
  }
}

const float* QqqLinear::bias_for(at::ScalarType type) const {
  const at::Tensor& bias = type == at::kFloat ? bias_f32_ : type == at::kHalf ? bias_f16_ : bias_bf16_;
  return bias.defined() ? bias.const_data_ptr<float>() : nullptr;
}

int64_t QqqLinear::bytes() const noexcept {
  const int64_t codes = weights_.channels * weights_.k / 2;
  return codes + (weights_.ratios != nullptr ? codes / w4a8::kGroup * 4 : 0) + weights_.channels * 4;
}

at::Tensor QqqLinear::forward(const at::Tensor& x) const {
  const std::vector<const QqqLinear*> all = {this};
  return std::move(QqqProduct(all, x).run()[0]);
}

std::vector<at::Tensor> QqqLinear::forward_together(const std::vector<const LinearOp*>& ops,
                                                    const at::Tensor& x) const {
  std::vector<const QqqLinear*> all;
  for (const LinearOp* op : ops) {
    const auto* layer = dynamic_cast<const QqqLinear*>(op);
    if (layer == nullptr || layer->runtime_.pool != runtime_.pool || layer->runtime_.level != runtime_.level)
      return LinearOp::forward_together(ops, x);
    all.push_back(layer);
  }
  return QqqProduct(all, x).run();
}

}  // namespace gramian
