#include "runtime/qqq_linear.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/w4a8/w4a8.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr int64_t kTileRows = 64;
constexpr int64_t kTileChannels = 64;
constexpr int64_t kQuantizeRows = 16;
// Bound of the int8 copy of the activations.
constexpr int64_t kScratchBytes = int64_t{4} << 20;

int64_t tiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

w4a8::Activation activation(const at::Tensor& x, const std::string& name) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return w4a8::Activation::f32;
    case at::kHalf:
      return w4a8::Activation::f16;
    case at::kBFloat16:
      return w4a8::Activation::bf16;
    default:
      throw Error(ErrorKind::invalid_argument, name,
                  str("expected activations of f32, f16 or bf16, found ", c10::toString(x.scalar_type())));
  }
}

}  // namespace

QqqLinear::QqqLinear(qqq::Decoded decoded, std::shared_ptr<ThreadPool> pool, std::string name, CpuLevel level)
    : decoded_(std::move(decoded)), pool_(std::move(pool)), name_(std::move(name)), level_(level) {
  GRAMIAN_CHECK(pool_ != nullptr, name_);
  GRAMIAN_CHECK(decoded_.values.dim() == 2 && decoded_.values.scalar_type() == at::kChar &&
                    decoded_.s_channel.scalar_type() == at::kFloat &&
                    decoded_.s_channel.sizes() == at::IntArrayRef({decoded_.values.size(0)}),
                name_);
  const int64_t k = decoded_.values.size(1);
  if (k > w4a8::kMaxInFeatures) {
    throw Error(ErrorKind::unsupported, name_,
                str(k, " inputs: 32 bits hold the sum of at most ", w4a8::kMaxInFeatures, " int8 products"),
                "leave this module unquantized");
  }
  decoded_.values = decoded_.values.contiguous();
  decoded_.s_channel = decoded_.s_channel.contiguous();
  if (decoded_.bias.defined()) {
    bias_f32_ = decoded_.bias.to(at::kFloat).contiguous();
    bias_f16_ = decoded_.bias.to(at::kHalf).to(at::kFloat).contiguous();
    bias_bf16_ = decoded_.bias.to(at::kBFloat16).to(at::kFloat).contiguous();
  }
}

const float* QqqLinear::bias_for(at::ScalarType type) const {
  const at::Tensor& bias = type == at::kFloat ? bias_f32_ : type == at::kHalf ? bias_f16_ : bias_bf16_;
  return bias.defined() ? bias.const_data_ptr<float>() : nullptr;
}

at::Tensor QqqLinear::forward(const at::Tensor& x) const {
  const int64_t n = decoded_.values.size(0), k = decoded_.values.size(1);
  const w4a8::Activation type = activation(x, name_);
  if (x.dim() < 1 || x.size(-1) != k) {
    throw Error(ErrorKind::invalid_argument, name_,
                gramian::str("expected activations [.., ", k, "], found ", x.sizes()));
  }
  if (!x.is_cpu()) throw Error(ErrorKind::invalid_argument, name_, "expected activations in host memory");
  const at::Tensor input = x.contiguous();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = n;
  at::Tensor output = tensor::empty(shape, x.scalar_type());

  const int64_t rows = input.numel() / k;
  const auto element = static_cast<int64_t>(x.element_size());
  const auto* x_data = static_cast<const std::byte*>(input.const_data_ptr());
  auto* y_data = static_cast<std::byte*>(output.mutable_data_ptr());
  const auto* v = decoded_.values.const_data_ptr<int8_t>();
  const auto* s_channel = decoded_.s_channel.const_data_ptr<float>();
  const float* bias = bias_for(x.scalar_type());

  const int64_t block = std::min(std::max(kScratchBytes / k, int64_t{1}), rows);
  std::vector<int8_t> q(static_cast<size_t>(block * k));
  std::vector<float> s_row(static_cast<size_t>(block));
  for (int64_t begin = 0; begin < rows; begin += block) {
    const int64_t count = std::min(block, rows - begin);
    pool_->run(tiles(count, kQuantizeRows), [&](int64_t task) {
      const int64_t row = task * kQuantizeRows;
      w4a8::quantize_rows(level_, type, x_data + (begin + row) * k * element,
                          std::min(kQuantizeRows, count - row), k, q.data() + row * k, s_row.data() + row);
    });
    const int64_t row_tiles = tiles(count, kTileRows);
    pool_->run(row_tiles * tiles(n, kTileChannels), [&](int64_t task) {
      const int64_t row = task % row_tiles * kTileRows, channel = task / row_tiles * kTileChannels;
      const int64_t tile_rows = std::min(kTileRows, count - row),
                    tile_channels = std::min(kTileChannels, n - channel);
      int32_t acc[kTileRows * kTileChannels];
      w4a8::int8_matmul(level_, q.data() + row * k, tile_rows, v + channel * k, tile_channels, k, acc);
      w4a8::rescale(level_, type, acc, tile_rows, tile_channels, s_row.data() + row, s_channel + channel,
                    bias != nullptr ? bias + channel : nullptr,
                    y_data + ((begin + row) * n + channel) * element, n);
    });
  }
  return output;
}

}  // namespace gramian
