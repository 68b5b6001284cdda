// GGUF, version 3 (version 2 has the same layout and is read too), little-endian:
//
//   "GGUF", u32 version, u64 tensors, u64 keys
//   each key:     string, u32 value type, value          string: u64 length, bytes; array: u32 element type, u64 count, elements
//   each tensor:  string name (at most 63 bytes), u32 dimensions (at most 4), u64 sizes (fastest first), u32 type, u64 offset
//   zeros up to a multiple of the alignment, then the data: each tensor in its order, padded with zeros
//
// An offset counts from the data and is the sum of the padded sizes before it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/file.h"
#include "kernels/codecs/codec.h"

namespace gramian::gguf {

// The alternative's index is the element type in the file. Arrays of arrays (9) do not occur.
using Array = std::variant<std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>,
                           std::vector<int16_t>, std::vector<uint32_t>, std::vector<int32_t>,
                           std::vector<float>, std::vector<bool>, std::vector<std::string>, std::monostate,
                           std::vector<uint64_t>, std::vector<int64_t>, std::vector<double>>;
// The alternative's index is the value type in the file.
using Value = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool, std::string,
                           Array, uint64_t, int64_t, double>;

// Keys with their values, in file order. Getters give nothing for a missing key and throw corrupt_data, naming file and key, for
// a value of another type.
class Metadata {
 public:
  Metadata() = default;
  // `where`: the file, for messages.
  explicit Metadata(std::string where) : where_(std::move(where)) {}

  // A key that is there already gets the new value in its old place.
  void set(const std::string& key, Value value);
  const Value* find(const std::string& key) const;
  const std::vector<std::pair<std::string, Value>>& entries() const noexcept { return entries_; }

  // Any integer type; corrupt_data when it leaves int64.
  std::optional<int64_t> integer(const std::string& key) const;
  // Any integer or float type.
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  // Null when missing.
  const std::string* string(const std::string& key) const;
  // Null when missing. T: the elements' type.
  template <class T>
  const std::vector<T>* array(const std::string& key) const {
    const Value* value = find(key);
    if (value == nullptr) return nullptr;
    const auto* all = std::get_if<Array>(value);
    const auto* found = all == nullptr ? nullptr : std::get_if<std::vector<T>>(all);
    if (found == nullptr) refuse(key, *value, Value(Array(std::vector<T>{})));
    return found;
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const Value& found, const Value& expected) const;
  [[noreturn]] void refuse(const std::string& key, const Value& found, const std::string& expected) const;

  std::string where_;
  std::vector<std::pair<std::string, Value>> entries_;
  std::map<std::string, size_t, std::less<>> places_;
};

// "u32", "string", "array of f32".
std::string type_name(const Value& value);

constexpr size_t kNameBytesMax = 63;
constexpr size_t kDimensionsMax = 4;
constexpr uint64_t kDefaultAlignment = 32;

struct TensorType {
  std::string name;
  const Codec* codec = nullptr;
  // Slowest first, as elsewhere in this project: a matrix is [out, in]. The last one is a multiple of the codec's block.
  std::vector<int64_t> shape;

  int64_t columns() const noexcept { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const noexcept;
  uint64_t bytes() const noexcept { return static_cast<uint64_t>(rows() * codec->row_bytes(columns())); }
};

struct Tensor : TensorType {
  std::span<const std::byte> data;  // inside the file's mapping; aligned as the file says, not as memory does

  // f32 [rows() * columns()].
  void decode(float* out, ThreadPool* pool = nullptr) const;
};

// A file mapped read-only and checked: every count, length, offset, type, alignment and size, before it is used. Throws
// corrupt_data with the byte and what was expected; unsupported for versions and tensor types that are not built.
class File {
 public:
  explicit File(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return file_->path(); }
  uint32_t version() const noexcept { return version_; }
  const Metadata& metadata() const noexcept { return metadata_; }
  // In file order.
  const std::vector<Tensor>& tensors() const noexcept { return tensors_; }
  // Where the last tensor ends, with what fills it up to the alignment; a file may be longer, or end without the filling.
  uint64_t end() const noexcept { return end_; }
  // Null when there is none.
  const Tensor* find(std::string_view name) const;
  // Throws invalid_argument naming file and tensor.
  const Tensor& tensor(std::string_view name) const;
  const std::shared_ptr<const MappedFile>& mapping() const noexcept { return file_; }

 private:
  std::shared_ptr<const MappedFile> file_;
  uint32_t version_ = 0;
  uint64_t end_ = 0;
  Metadata metadata_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> places_;
};

// A file to be: its first bytes up to the data, where each tensor goes from the start of the file, and its length.
struct Layout {
  std::string head;
  std::vector<uint64_t> offsets;
  uint64_t bytes = 0;
};

// Version 3, aligned as `general.alignment` says (32 without it). Throws invalid_argument for what File would refuse: names that
// are empty, too long or there twice, sizes that do not divide into blocks or overflow, an alignment that is no power of two.
Layout lay_out(const Metadata& metadata, const std::vector<TensorType>& tensors);

// A file made piece by piece, in any order, or completed that an earlier one of the same layout left half-made: what is there stays
// until it is written again. What is never written reads as zeros where the file is new.
class PieceWriter {
 public:
  // Reserves the room on the disk. Throws what lay_out() throws, io.
  PieceWriter(const std::filesystem::path& path, const Metadata& metadata, std::vector<TensorType> tensors);
  // Bytes of tensor `tensor` from its byte `at` on.
  void write(size_t tensor, uint64_t at, std::span<const std::byte> bytes);
  std::vector<std::byte> read(size_t tensor, uint64_t at, size_t size) const;
  // fsyncs what was written so far.
  void sync() { file_.sync(); }

 private:
  std::filesystem::path path_;
  std::vector<TensorType> tensors_;
  Layout layout_;
  OutputFile file_;
};

// Puts bytes behind those that were put before.
using Append = std::function<void(std::span<const std::byte>)>;
// Writes the file through write_atomically(). `fill(i, append)` is called for every tensor in order and appends its bytes.
void write(const std::filesystem::path& path, const Metadata& metadata,
           const std::vector<TensorType>& tensors, const std::function<void(size_t, const Append&)>& fill);

}  // namespace gramian::gguf
