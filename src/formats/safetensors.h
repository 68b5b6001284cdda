// safetensors: u64 little-endian header length, a JSON header
//   {name: {dtype, shape, data_offsets: [begin, end]}}
// with an optional "__metadata__" of strings, then the tensor bytes (offsets count from the end of the
// header). Every length, offset, overlap, hole and duplicate key is checked before use; a damaged file throws
// corrupt_data with the file's name, what was expected and what was found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace at {
class Tensor;
}

namespace gramian {

struct TensorEncoding;  // formats/encoded_tensor.h

// Bytes of one tensor, inside a mapped file or in memory.
struct StoredTensor {
  DType dtype = DType::f32;  // of the values, with an encoding too
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;        // with an encoding: of its codes
  std::shared_ptr<const MappedFile> file;  // null: in memory
  std::shared_ptr<const TensorEncoding>
      encoding{};                        // how a checkpoint stores values in fewer bits; none: as they are
  std::shared_ptr<const void> memory{};  // keeps the bytes that are in no file

  // The bytes of `tensor`, which stays alive; of a copy where it is strided or on another device. Throws unsupported for
  // types that files do not have.
  static StoredTensor of(const at::Tensor& tensor);

  int64_t values() const noexcept;

  // Zero-copy (the tensor keeps the mapping alive) when the bytes are aligned for the type, a copy otherwise; decoded where
  // there is an encoding. Throws corrupt_data for BOOL bytes other than 0 and 1.
  at::Tensor to_tensor() const;
  // Entry `index` of the first dimension; no other one is decoded.
  at::Tensor matrix(int64_t index) const;
  // The pages of its bytes, or of a part of them, stop counting as resident.
  void drop() const;
  void drop(std::span<const std::byte> part) const;
  // The system reads the bytes from the disk meanwhile.
  void read_ahead() const;
  // For messages; "memory" without a file.
  std::filesystem::path path() const;
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::map<std::string, StoredTensor>& tensors() const noexcept { return tensors_; }
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  // Throws invalid_argument naming file and tensor.
  const StoredTensor& tensor(const std::string& name) const;
  at::Tensor load(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct PlannedTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

// A model's weights, when they are in one file.
inline constexpr const char* kSingleWeightsName = "model.safetensors";

// Writes a model's weights into a folder: one model.safetensors, or model-0000i-of-0000n.safetensors and
// model.safetensors.index.json when the tensors exceed `shard_bytes_max`. The plan fixes every offset, so
// tensors may be written in any order as they are made, also from several threads, and nothing is held in
// memory. Planned order is file order. Shards have their full length, and their room on the disk, from the beginning. A shard
// is fsynced and closed when its last tensor is written. A folder that an earlier writer of the same plan left half-made may be
// completed: what is there stays until it is written again.
class ModelWriter {
 public:
  // `shard_bytes_max` counts tensor bytes; a larger tensor stands alone in its shard. An empty plan throws
  // invalid_argument.
  ModelWriter(std::filesystem::path folder, const std::vector<PlannedTensor>& plan, uint64_t shard_bytes_max);
  ~ModelWriter();
  // Name, element type and shape must be as planned, each tensor is written once (throws internal otherwise).
  // Tensors may be strided and on any device.
  void write(const std::string& name, const at::Tensor& tensor);
  void write(const std::string& name, std::span<const std::byte> bytes);
  // The tensor as it stands in the folder, written now or by an earlier writer.
  StoredTensor read(const std::string& name) const;
  // Takes the tensor as an earlier writer left it.
  void keep(const std::string& name);
  // fsyncs what was written so far.
  void sync();
  // Refuses (internal) while a planned tensor is missing; writes the index and fsyncs the folder.
  void finish();
  // Bytes of all planned tensors.
  uint64_t total_bytes() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One file, written under a temporary name, fsynced and renamed. Types with wide elements come first, so that
// every tensor is aligned in the file.
void save_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors);

}  // namespace gramian
