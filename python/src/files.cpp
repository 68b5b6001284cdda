// GGML's block codecs, GGUF files and importance matrices.
#include <pybind11/stl/filesystem.h>

#include <cstring>

#include "bindings.h"
#include "formats/checkpoint.h"
#include "formats/gguf/gguf.h"
#include "formats/imatrix_file.h"
#include "kernels/codecs/codec.h"
#include "kernels/cpu_level.h"
#include "tensor/ops.h"

namespace gramian::python {
namespace {

const Codec& codec_of(const std::string& name) {
  if (const Codec* codec = find_codec(name)) return *codec;
  std::string known;
  for (const Codec& codec : codecs()) known += (known.empty() ? "" : ", ") + std::string(codec.name);
  throw Error(ErrorKind::invalid_argument, "codec", "'" + name + "' is not known", "choose one of " + known);
}

at::Tensor plain_floats(const at::Tensor& x) { return x.detach().to(at::kCPU).to(at::kFloat).contiguous(); }

at::Tensor encode(const at::Tensor& weight, const std::string& type,
                  const std::optional<at::Tensor>& importance, const std::string& name) {
  const Codec& codec = codec_of(type);
  if (weight.dim() < 1) throw Error(ErrorKind::invalid_argument, name, "expected rows [.., columns]");
  const Work work;
  const at::Tensor x = plain_floats(weight);
  const int64_t columns = x.size(-1), rows = columns == 0 ? 0 : x.numel() / columns;
  EncodeRowsOptions options{.level = cpu_level(), .pool = pool().get()};
  at::Tensor given;
  if (importance) {
    given = plain_floats(*importance);
    if (given.dim() != 1 || given.size(0) != columns)
      throw Error(ErrorKind::invalid_argument, name,
                  str("importance must be [", columns, "], one number a column"));
    options.importance = given.const_data_ptr<float>();
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = columns % codec.block == 0 ? codec.row_bytes(columns) : 0;
  const at::Tensor out = tensor::empty(shape, at::kByte);
  encode_rows(codec, x.const_data_ptr<float>(), rows, columns, options, out.data_ptr<uint8_t>(), name);
  return out;
}

at::Tensor decode(const at::Tensor& bytes, const std::string& type) {
  const Codec& codec = codec_of(type);
  if (bytes.dim() < 1 || bytes.scalar_type() != at::kByte || bytes.size(-1) % codec.bytes != 0)
    throw Error(ErrorKind::invalid_argument, "bytes",
                str("expected uint8 [.., a multiple of ", codec.bytes, "]"));
  const Work work;
  const at::Tensor in = bytes.to(at::kCPU).contiguous();
  std::vector<int64_t> shape = in.sizes().vec();
  shape.back() = in.size(-1) / codec.bytes * codec.block;
  const at::Tensor out = tensor::empty(shape, at::kFloat);
  if (out.numel() > 0)
    decode_rows(codec, in.const_data_ptr<uint8_t>(), out.numel() / shape.back(), shape.back(), pool().get(),
                out.data_ptr<float>());
  return out;
}

// ---- GGUF

py::object to_python(const gguf::Array& array) {
  return std::visit(
      [](const auto& values) -> py::object {
        if constexpr (std::is_same_v<std::decay_t<decltype(values)>, std::monostate>) {
          return py::list();
        } else {
          return py::cast(values);
        }
      },
      array);
}

py::object to_python(const gguf::Value& value) {
  return std::visit(
      [](const auto& one) -> py::object {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, gguf::Array>) {
          return to_python(one);
        } else {
          return py::cast(one);
        }
      },
      value);
}

gguf::Value to_value(const std::string& key, const py::handle& given) {
  if (py::isinstance<py::bool_>(given)) return given.cast<bool>();
  if (py::isinstance<py::int_>(given)) {
    const auto number = given.cast<int64_t>();
    if (number >= 0 && number <= UINT32_MAX) return static_cast<uint32_t>(number);
    return number;
  }
  if (py::isinstance<py::float_>(given)) return given.cast<float>();
  if (py::isinstance<py::str>(given)) return given.cast<std::string>();
  if (py::isinstance<py::list>(given) || py::isinstance<py::tuple>(given)) {
    const auto items = given.cast<py::sequence>();
    if (items.size() > 0 && py::isinstance<py::str>(items[0]))
      return gguf::Array(given.cast<std::vector<std::string>>());
    if (items.size() > 0 && py::isinstance<py::float_>(items[0]))
      return gguf::Array(given.cast<std::vector<float>>());
    return gguf::Array(given.cast<std::vector<int32_t>>());
  }
  throw Error(ErrorKind::invalid_argument, key, "a value of a type that GGUF does not have",
              "pass bool, int, float, str or a list of one of them");
}

py::dict read_gguf(const std::filesystem::path& path) {
  const auto file = std::make_shared<const gguf::File>(path);
  py::dict metadata, tensors;
  for (const auto& [key, value] : file->metadata().entries()) metadata[py::str(key)] = to_python(value);
  for (const gguf::Tensor& tensor : file->tensors()) {
    std::vector<int64_t> shape = tensor.shape;
    if (shape.empty()) shape = {1};
    shape.back() = tensor.codec->row_bytes(tensor.columns());
    // Zero-copy: the tensor keeps the mapping.
    const at::Tensor bytes = gramian::tensor::wrap(tensor.data.data(), shape, at::kByte, file);
    tensors[py::str(tensor.name)] =
        py::make_tuple(std::string(tensor.codec->name), py::cast(tensor.shape), py::cast(bytes));
  }
  py::dict all;
  all["metadata"] = metadata;
  all["tensors"] = tensors;
  return all;
}

// tensors: (name, type, shape, uint8 bytes [.., row bytes]) in file order.
void write_gguf(
    const std::filesystem::path& path, const py::dict& given,
    const std::vector<std::tuple<std::string, std::string, std::vector<int64_t>, at::Tensor>>& tensors) {
  gguf::Metadata metadata(path.string());
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    metadata.set(name, to_value(name, value));
  }
  std::vector<gguf::TensorType> types;
  std::vector<at::Tensor> bytes;
  for (const auto& [name, type, shape, data] : tensors) {
    gguf::TensorType& one = types.emplace_back(gguf::TensorType{name, &codec_of(type), shape});
    bytes.push_back(data.to(at::kCPU).contiguous());
    if (data.scalar_type() != at::kByte || shape.empty() || shape.back() % one.codec->block != 0 ||
        bytes.back().nbytes() != one.bytes())
      throw Error(ErrorKind::invalid_argument, name, "its bytes are not those of its type and shape",
                  "pass what gramian.encode() gives");
  }
  const Work work;
  gguf::write(path, metadata, types, [&](size_t i, const gguf::Append& append) {
    append({static_cast<const std::byte*>(bytes[i].const_data_ptr()), bytes[i].nbytes()});
  });
}

// ---- importance matrices

at::Tensor copy_of(const std::vector<float>& values, const std::vector<int64_t>& shape) {
  const at::Tensor out = tensor::empty(shape, at::kFloat);
  if (!values.empty()) std::memcpy(out.data_ptr(), values.data(), values.size() * sizeof(float));
  return out;
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor plain = plain_floats(tensor);
  const float* data = plain.const_data_ptr<float>();
  return {data, data + plain.numel()};
}

py::dict read_imatrix(const std::filesystem::path& path) {
  const ImportanceMatrix matrix = read_importance(path);
  py::dict weights;
  for (const auto& [name, sums] : matrix.weights) {
    weights[py::str(name)] = py::make_tuple(copy_of(sums.sums, {sums.experts(), sums.in_features()}),
                                            copy_of(sums.counts, {sums.experts()}));
  }
  py::dict all;
  all["weights"] = weights;
  all["datasets"] = matrix.datasets;
  all["chunks"] = matrix.chunks;
  all["chunk_size"] = matrix.chunk_size;
  return all;
}

void write_imatrix(const std::filesystem::path& path,
                   const std::map<std::string, std::pair<at::Tensor, at::Tensor>>& weights,
                   const std::vector<std::string>& datasets, uint32_t chunks, uint32_t chunk_size,
                   bool legacy) {
  ImportanceMatrix matrix{.weights = {}, .datasets = datasets, .chunks = chunks, .chunk_size = chunk_size};
  for (const auto& [name, pair] : weights) {
    ImportanceSums sums{values_of(pair.first), values_of(pair.second)};
    if (sums.counts.empty() || sums.sums.size() % sums.counts.size() != 0)
      throw Error(ErrorKind::invalid_argument, name, "expected sums [experts, in] and counts [experts]");
    matrix.weights[name] = std::move(sums);
  }
  const Work work;
  legacy ? write_legacy_importance(path, matrix) : write_importance(path, matrix);
}

// The tensors of one module of a checkpoint, by their names behind the module's.
std::map<std::string, at::Tensor> module_tensors(const std::filesystem::path& folder,
                                                 const std::string& module) {
  const Checkpoint checkpoint(folder);
  std::map<std::string, at::Tensor> tensors;
  const std::string begin = module + ".";
  const auto& all = checkpoint.tensors();
  for (auto it = all.lower_bound(begin); it != all.end() && it->first.starts_with(begin); ++it)
    tensors[it->first.substr(begin.size())] = it->second.to_tensor();
  return tensors;
}

}  // namespace

void bind_files(py::module_& m) {
  m.def("codec_names", [] {
    std::vector<std::string> names;
    for (const Codec& codec : codecs()) names.emplace_back(codec.name);
    return names;
  });
  m.def("encode", &encode, py::arg("weight"), py::arg("type"), py::arg("importance"), py::arg("name"));
  m.def("decode", &decode, py::arg("bytes"), py::arg("type"));
  m.def("read_gguf", &read_gguf, py::arg("path"));
  m.def("write_gguf", &write_gguf, py::arg("path"), py::arg("metadata"), py::arg("tensors"));
  m.def("module_tensors", &module_tensors, py::arg("folder"), py::arg("module"));
  m.def("read_imatrix", &read_imatrix, py::arg("path"));
  m.def("write_imatrix", &write_imatrix, py::arg("path"), py::arg("weights"), py::arg("datasets"),
        py::arg("chunks"), py::arg("chunk_size"), py::arg("legacy"));
}

}  // namespace gramian::python
