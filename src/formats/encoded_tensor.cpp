#include "formats/encoded_tensor.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "formats/json.h"
#include "kernels/small_floats.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr int64_t kMxBlock = 32;

int64_t blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

// One matrix [rows, columns] of FP8 codes.
void decode_fp8(const TensorEncoding& encoding, const uint8_t* codes, const float* scales, int64_t rows,
                int64_t columns, float* out) {
  const int64_t scale_columns = blocks(columns, encoding.block_columns);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row_scales = scales + r / encoding.block_rows * scale_columns;
    for (int64_t begin = 0; begin < columns; begin += encoding.block_columns) {
      const float scale = row_scales[begin / encoding.block_columns];
      const int64_t end = std::min(columns, begin + encoding.block_columns);
      for (int64_t c = begin; c < end; ++c) out[r * columns + c] = kE4m3[codes[r * columns + c]] * scale;
    }
  }
}

// Rows of MXFP4 blocks -> bf16. A code has three significant bits, so that the product loses none.
void decode_mxfp4(const uint8_t* codes, const uint8_t* scales, int64_t count, uint16_t* out) {
  for (int64_t b = 0; b < count; ++b) {
    const float scale = std::ldexp(1.0f, scales[b] - 127);
    for (int64_t i = 0; i < kMxBlock / 2; ++i) {
      const uint8_t pair = codes[b * kMxBlock / 2 + i];
      for (const int nibble : {pair & 15, pair >> 4})
        *out++ =
            static_cast<uint16_t>(std::bit_cast<uint32_t>(kE2m1[static_cast<size_t>(nibble)] * scale) >> 16);
    }
  }
}

// Rotary pairs side by side -> half a head apart.
at::Tensor halved(const at::Tensor& rows, int64_t heads) {
  const at::Tensor pairs = rows.reshape({heads, rows.size(0) / heads / 2, 2, -1});
  return pairs.transpose(1, 2).reshape(rows.sizes()).contiguous();
}

at::Tensor decode_ggml(const TensorEncoding& encoding) {
  const std::vector<int64_t>& shape = encoding.codes.shape;
  at::Tensor values = tensor::empty(shape, at::kFloat);
  const int64_t columns = shape.empty() ? 1 : shape.back();  // a single value may have no dimension
  decode_rows(*encoding.codec, reinterpret_cast<const uint8_t*>(encoding.codes.bytes.data()),
              values.numel() / columns, columns, nullptr, values.mutable_data_ptr<float>());
  if (encoding.minus_one) values.sub_(1);
  return encoding.heads > 0 ? halved(values, encoding.heads) : values;
}

// Matrices [first, first + count) of the stack.
at::Tensor decode_matrices(const TensorEncoding& encoding, int64_t first, int64_t count) {
  const auto* codes = reinterpret_cast<const uint8_t*>(encoding.codes.bytes.data());
  if (encoding.kind == TensorEncoding::Kind::mxfp4) {
    const int64_t rows = encoding.codes.shape[1], groups = encoding.codes.shape[2];
    at::Tensor values = tensor::empty({count, rows, groups * kMxBlock}, at::kBFloat16);
    const auto* scales = reinterpret_cast<const uint8_t*>(encoding.scales.bytes.data());
    decode_mxfp4(codes + first * rows * groups * kMxBlock / 2, scales + first * rows * groups,
                 count * rows * groups, reinterpret_cast<uint16_t*>(values.data_ptr()));
    return values.transpose(1, 2);
  }
  const std::vector<int64_t>& shape = encoding.codes.shape;
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  const at::Tensor scales = encoding.scales.to_tensor().to(at::kFloat).contiguous();
  const int64_t matrix_scales = blocks(rows, encoding.block_rows) * blocks(columns, encoding.block_columns);
  at::Tensor values = tensor::empty({count, rows, columns}, at::kFloat);
  for (int64_t m = 0; m < count; ++m) {
    decode_fp8(encoding, codes + (first + m) * rows * columns,
               scales.const_data_ptr<float>() + (first + m) * matrix_scales, rows, columns,
               values.mutable_data_ptr<float>() + m * rows * columns);
  }
  return values;
}

const nlohmann::ordered_json* quantization_of(const nlohmann::ordered_json& config) {
  const auto found = config.find("quantization_config");
  return found == config.end() || !found->is_object() ? nullptr : &*found;
}

std::string method_of(const nlohmann::ordered_json& fields) {
  const auto found = fields.find("quant_method");
  return found == fields.end() || !found->is_string() ? "" : found->get<std::string>();
}

// weight_block_size; nothing for a null.
std::optional<std::pair<int64_t, int64_t>> block_size(const nlohmann::ordered_json& fields,
                                                      const std::string& where) {
  const auto found = fields.find("weight_block_size");
  if (found == fields.end() || found->is_null()) return std::nullopt;
  const auto size = [&](size_t i) {
    const bool sound = found->is_array() && found->size() == 2 && (*found)[i].is_number_integer();
    const int64_t value = sound ? (*found)[i].get<int64_t>() : 0;
    if (value < 1 || value > (1 << 20)) {
      throw Error(ErrorKind::unsupported, where, "quantization_config: weight_block_size is " + found->dump(),
                  "expected two positive integers");
    }
    return value;
  };
  return std::pair{size(0), size(1)};
}

std::string text(const std::vector<int64_t>& dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) out += str(i == 0 ? "" : ", ", dims[i]);
  return out + "]";
}

std::string fault_of_scales(const std::string& name, const StoredTensor& scales,
                            const std::vector<int64_t>& expected, const std::vector<DType>& types) {
  if (scales.shape == expected && std::find(types.begin(), types.end(), scales.dtype) != types.end())
    return "";
  return str(quote_name(name), ": ", dtype_name(scales.dtype), " ", text(scales.shape),
             " does not fit its codes, expected ", dtype_name(types[0]), " ", text(expected));
}

class Folder {
 public:
  Folder(std::map<std::string, StoredTensor>& tensors, const nlohmann::ordered_json& config,
         const std::string& where)
      : tensors_(tensors) {
    const auto* fields = quantization_of(config);
    const bool fp8 = fields != nullptr && method_of(*fields) == "fp8";
    if (fp8) size_ = block_size(*fields, where).value_or(size_);
    modules_ = fields != nullptr && method_of(*fields) == "compressed-tensors";
  }

  void run(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    for (const std::string& name : names) {
      if (!tensors_.contains(name)) continue;
      if (name.ends_with("_scale_inv")) fold_fp8(name);
      if (name.ends_with("_blocks") && tensors_.at(name).dtype == DType::u8) fold_mxfp4(name);
    }
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.dtype == DType::f8_e4m3 && !is_scale(name) && !is_of_module(name))
        faults_.push_back(quote_name(name) + ": FP8 codes without " + name +
                          (modules_ ? "_scale" : "_scale_inv"));
    }
    if (faults_.empty()) return;
    std::string all;
    for (size_t i = 0; i < std::min<size_t>(faults_.size(), 10); ++i) all += "\n  " + faults_[i];
    if (faults_.size() > 10) all += str("\n  and ", faults_.size() - 10, " more");
    throw Error(
        ErrorKind::corrupt_data, folder, "codes and scales do not belong together:" + all,
        "\nfetch the missing shard, or the checkpoint again: codes without their scales have no values");
  }

 private:
  // NVFP4 keeps its codes elsewhere, and scales in this type.
  bool is_scale(const std::string& name) const {
    constexpr std::string_view kScale = "_scale";
    return name.ends_with(kScale) &&
           tensors_.contains(name.substr(0, name.size() - kScale.size()) + "_packed");
  }

  // compressed-tensors' FP8 modules are read as a whole.
  bool is_of_module(const std::string& name) const { return modules_ && tensors_.contains(name + "_scale"); }

  void fold_fp8(const std::string& scale_name) {
    constexpr std::string_view kSuffix = "_scale_inv";
    const std::string name = scale_name.substr(0, scale_name.size() - kSuffix.size());
    const auto codes = tensors_.find(name);
    const StoredTensor scales = tensors_.at(scale_name);
    if (codes == tensors_.end() || codes->second.dtype != DType::f8_e4m3 || codes->second.shape.size() < 2 ||
        codes->second.shape.size() > 3) {
      faults_.push_back(quote_name(scale_name) + ": no F8_E4M3 matrix, or stack of some, " + name);
      return;
    }
    std::vector<int64_t> expected = codes->second.shape;
    const size_t rows = expected.size() - 2;
    expected[rows] = blocks(expected[rows], size_.first);
    expected[rows + 1] = blocks(expected[rows + 1], size_.second);
    const std::string fault =
        fault_of_scales(scale_name, scales, expected, {DType::f32, DType::bf16, DType::f16});
    if (!fault.empty()) faults_.push_back(fault);
    put(name, {TensorEncoding::Kind::fp8_blocks, codes->second, scales, size_.first, size_.second},
        DType::f32, codes->second.shape);
    tensors_.erase(scale_name);
  }

  void fold_mxfp4(const std::string& code_name) {
    constexpr std::string_view kSuffix = "_blocks";
    const std::string name = code_name.substr(0, code_name.size() - kSuffix.size());
    const StoredTensor codes = tensors_.at(code_name);
    const auto scales = tensors_.find(name + "_scales");
    if (scales == tensors_.end()) {
      faults_.push_back(quote_name(code_name) + ": MXFP4 codes without " + name + "_scales");
      return;
    }
    // A tensor of nothing may have sizes that no product of fits.
    if (codes.shape.size() != 4 || codes.shape[3] != kMxBlock / 2 ||
        codes.shape[2] > std::numeric_limits<int64_t>::max() / kMxBlock) {
      faults_.push_back(quote_name(code_name) + ": shape " + text(codes.shape) +
                        ", expected [experts, rows, blocks, 16]");
      return;
    }
    const std::string fault = fault_of_scales(scales->first, scales->second,
                                              {codes.shape[0], codes.shape[1], codes.shape[2]}, {DType::u8});
    if (!fault.empty()) faults_.push_back(fault);
    put(name, {TensorEncoding::Kind::mxfp4, codes, scales->second}, DType::bf16,
        {codes.shape[0], codes.shape[2] * kMxBlock, codes.shape[1]});
    tensors_.erase(code_name);
    tensors_.erase(name + "_scales");
  }

  void put(const std::string& name, TensorEncoding encoding, DType dtype, std::vector<int64_t> shape) {
    StoredTensor values{dtype, std::move(shape), encoding.codes.bytes, encoding.codes.file};
    values.encoding = std::make_shared<const TensorEncoding>(std::move(encoding));
    tensors_.insert_or_assign(name, std::move(values));
  }

  std::map<std::string, StoredTensor>& tensors_;
  std::pair<int64_t, int64_t> size_{128, 128};
  bool modules_ = false;
  std::vector<std::string> faults_;
};

}  // namespace

at::Tensor TensorEncoding::decode() const {
  if (kind == Kind::ggml) return decode_ggml(*this);
  const int64_t matrices = kind == Kind::mxfp4 || codes.shape.size() == 3 ? codes.shape[0]
                           : codes.shape.size() == 2                      ? 1
                                                                          : -1;
  GRAMIAN_CHECK(matrices >= 0, "a stack of stacks");
  const at::Tensor all = decode_matrices(*this, 0, matrices);
  return codes.shape.size() == 2 ? all[0] : all;
}

at::Tensor TensorEncoding::decode_matrix(int64_t index) const {
  if (kind == Kind::ggml) return decode_ggml(*this).select(0, index);
  GRAMIAN_CHECK(codes.shape.size() > 2 && index >= 0 && index < codes.shape[0], "matrix ", index,
                " of a stack");
  return decode_matrices(*this, index, 1)[0];
}

bool is_decoded_source(const nlohmann::ordered_json& config, const std::string& where) {
  const auto* fields = quantization_of(config);
  if (fields == nullptr) return false;
  const std::string method = method_of(*fields);
  if (method == "mxfp4") return true;
  if (method != "fp8") return false;
  if (!block_size(*fields, where)) {
    throw Error(ErrorKind::unsupported, where, "quantization_config: fp8 without weight_block_size",
                "FP8 with a scale for each block is read; give the unquantized checkpoint");
  }
  const auto format = fields->find("fmt");
  if (format != fields->end() && *format != "e4m3") {
    throw Error(ErrorKind::unsupported, where, "quantization_config: fmt is " + format->dump(),
                "e4m3 is read");
  }
  return true;
}

void fold_encoded(std::map<std::string, StoredTensor>& tensors, const nlohmann::ordered_json& config,
                  const std::string& folder) {
  Folder(tensors, config, folder).run(folder);
}

}  // namespace gramian
