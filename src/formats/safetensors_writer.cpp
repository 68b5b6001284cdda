#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";

// One file to be: its first bytes (length and header) and where each tensor goes, from the start of the file.
struct Layout {
  std::string head;
  std::vector<uint64_t> offsets;
};

uint64_t planned_bytes(const PlannedTensor& tensor) {
  const std::optional<uint64_t> bytes = safetensors::tensor_bytes(tensor.dtype, tensor.shape);
  GRAMIAN_CHECK(bytes.has_value(), "impossible shape of tensor ", quote_name(tensor.name));
  return *bytes;
}

// JSON string with its quotes; names that are not UTF-8 cannot be stored.
std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::invalid_argument, quote_name(text), "tensor name is not UTF-8",
                "rename the tensor");
  }
}

// Own text, not a JSON library's: keys in planned order, no spaces, so that the bytes depend on the plan
// alone.
Layout lay_out(std::span<const PlannedTensor> tensors) {
  Layout layout;
  std::string header = R"({"__metadata__":{"format":"pt"})";
  uint64_t at = 0;
  for (const PlannedTensor& tensor : tensors) {
    const uint64_t end = at + planned_bytes(tensor);
    GRAMIAN_CHECK(end >= at, "file longer than 2^64 bytes");
    header +=
        str(",", json_string(tensor.name), R"(:{"dtype":")", dtype_name(tensor.dtype), R"(","shape":[)");
    for (size_t i = 0; i < tensor.shape.size(); ++i) header += str(i == 0 ? "" : ",", tensor.shape[i]);
    header += str(R"(],"data_offsets":[)", at, ",", end, "]}");
    layout.offsets.push_back(at);
    at = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > safetensors::kHeaderBytesMax) {
    throw Error(ErrorKind::invalid_argument, "",
                str("the header of one file would have ", header.size(), " bytes, the format's limit is ",
                    safetensors::kHeaderBytesMax),
                "use smaller shards");
  }
  for (size_t i = 0; i < 8; ++i) layout.head += static_cast<char>(header.size() >> (8 * i));
  layout.head += header;
  for (uint64_t& offset : layout.offsets) offset += layout.head.size();
  return layout;
}

std::span<const std::byte> bytes_of(const at::Tensor& contiguous) {
  if (contiguous.numel() == 0) return {};
  return {static_cast<const std::byte*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

}  // namespace

struct ModelWriter::State {
  struct Shard {
    std::string name;
    std::unique_ptr<OutputFile> file;  // open from its first tensor to its last
    int64_t missing = 0;
  };
  struct Slot {
    DType dtype = DType::f32;
    std::vector<int64_t> shape;
    uint64_t bytes = 0;
    size_t shard = 0;
    uint64_t offset = 0;
    bool written = false;
  };

  fs::path folder;
  std::vector<Shard> shards;
  std::map<std::string, Slot> slots;
  uint64_t total = 0;
  bool finished = false;
  std::mutex mutex;

  Slot& slot(const std::string& name) {
    const auto found = slots.find(name);
    GRAMIAN_CHECK(found != slots.end(), "tensor ", quote_name(name), " is not planned");
    return found->second;
  }
};

ModelWriter::ModelWriter(fs::path folder, const std::vector<PlannedTensor>& plan, uint64_t shard_bytes_max)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.folder = std::move(folder);
  if (plan.empty()) {
    throw Error(ErrorKind::invalid_argument, state.folder.string(), "no tensors to write",
                "check the source model");
  }

  // Shards as [first, last) of the plan, filled in order; a tensor above the maximum stands alone.
  std::vector<std::pair<size_t, size_t>> ranges{{0, 0}};
  uint64_t filled = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    const uint64_t bytes = planned_bytes(plan[i]);
    if (i > ranges.back().first && (bytes > shard_bytes_max || filled > shard_bytes_max - bytes)) {
      ranges.emplace_back(i, i);
      filled = 0;
    }
    ranges.back().second = i + 1;
    filled += bytes;
    state.total += bytes;
  }

  for (size_t s = 0; s < ranges.size(); ++s) {
    const auto [first, last] = ranges[s];
    std::array<char, 64> name{};
    std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", s + 1, ranges.size());
    const Layout layout = lay_out(std::span(plan).subspan(first, last - first));
    for (size_t i = first; i < last; ++i) {
      GRAMIAN_CHECK(plan[i].name != "__metadata__" && plan[i].name.find('\0') == std::string::npos,
                    "tensor name ", quote_name(plan[i].name), " cannot be stored");
      const State::Slot slot{plan[i].dtype, plan[i].shape, planned_bytes(plan[i]), s,
                             layout.offsets[i - first]};
      GRAMIAN_CHECK(state.slots.emplace(plan[i].name, slot).second, "tensor ", quote_name(plan[i].name),
                    " planned twice");
    }
    state.shards.push_back({.name = ranges.size() == 1 ? kSingleWeightsName : name.data(),
                            .file = nullptr,
                            .missing = static_cast<int64_t>(last - first)});
    OutputFile file(state.folder / state.shards.back().name, OutputFile::Content::keep);
    file.reserve(layout.offsets.back() + planned_bytes(plan[last - 1]));
    file.write_at(0, std::as_bytes(std::span(layout.head)));
  }
}

ModelWriter::~ModelWriter() = default;

void ModelWriter::write(const std::string& name, const at::Tensor& tensor) {
  const State::Slot& slot = state_->slot(name);
  GRAMIAN_CHECK(tensor::dtype_of(tensor) == slot.dtype, "tensor ", quote_name(name), " has dtype ",
                dtype_name(tensor::dtype_of(tensor)), ", planned ", dtype_name(slot.dtype));
  GRAMIAN_CHECK(tensor.sizes() == at::IntArrayRef(slot.shape), "tensor ", quote_name(name), " has shape ",
                tensor.sizes(), ", planned ", at::IntArrayRef(slot.shape));
  const at::Tensor contiguous = tensor.cpu().contiguous();
  write(name, bytes_of(contiguous));
}

void ModelWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  State& state = *state_;
  State::Slot& slot = state.slot(name);
  State::Shard& shard = state.shards[slot.shard];
  GRAMIAN_CHECK(bytes.size() == slot.bytes, "tensor ", quote_name(name), " has ", bytes.size(),
                " bytes, planned ", slot.bytes);
  {
    const std::lock_guard lock(state.mutex);
    GRAMIAN_CHECK(!slot.written, "tensor ", quote_name(name), " written twice");
    slot.written = true;
    if (!shard.file)
      shard.file = std::make_unique<OutputFile>(state.folder / shard.name, OutputFile::Content::keep);
  }
  shard.file->write_at(slot.offset, bytes);
  const std::lock_guard lock(state.mutex);
  if (--shard.missing == 0) {
    shard.file->close();
    shard.file.reset();
  }
}

StoredTensor ModelWriter::read(const std::string& name) const {
  const State::Slot& slot = state_->slot(name);
  const fs::path path = state_->folder / state_->shards[slot.shard].name;
  auto file = std::make_shared<const MappedFile>(path);
  if (file->bytes().size() < slot.offset + slot.bytes) {
    throw Error(ErrorKind::corrupt_data, path.string(), str("ends before tensor ", quote_name(name), " does"),
                "the job must begin again");
  }
  const auto bytes = file->bytes().subspan(slot.offset, slot.bytes);
  return {slot.dtype, slot.shape, bytes, std::move(file)};
}

void ModelWriter::keep(const std::string& name) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  State::Slot& slot = state.slot(name);
  GRAMIAN_CHECK(!slot.written, "tensor ", quote_name(name), " written twice");
  slot.written = true;
  --state.shards[slot.shard].missing;
}

void ModelWriter::sync() {
  const std::lock_guard lock(state_->mutex);
  for (const State::Shard& shard : state_->shards) {
    if (shard.file) shard.file->sync();
  }
  sync_directory(state_->folder);
}

void ModelWriter::finish() {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  GRAMIAN_CHECK(!state.finished, "finished twice");
  std::vector<std::string> missing;
  for (const auto& [name, slot] : state.slots) {
    if (!slot.written) missing.push_back(name);
  }
  GRAMIAN_CHECK(missing.empty(), missing.size(),
                " planned tensors were not written: ", quote_names(missing, 10));
  for (const State::Shard& shard : state.shards) {
    GRAMIAN_CHECK(shard.missing == 0, shard.name, " is incomplete after a failed write");
  }
  if (state.shards.size() > 1) {
    nlohmann::json index;
    index["metadata"]["total_size"] = state.total;
    for (const auto& [name, slot] : state.slots) index["weight_map"][name] = state.shards[slot.shard].name;
    write_atomically(state.folder / kIndexName, index.dump(2) + "\n");
  }
  sync_directory(state.folder);
  state.finished = true;
}

uint64_t ModelWriter::total_bytes() const noexcept { return state_->total; }

void save_safetensors(const fs::path& path, const std::map<std::string, at::Tensor>& tensors) {
  // Wide types first, so that every tensor is aligned in the file; then by name.
  std::vector<PlannedTensor> plan;
  for (const auto& [name, tensor] : tensors)
    plan.push_back({name, tensor::dtype_of(tensor), tensor.sizes().vec()});
  std::stable_sort(plan.begin(), plan.end(), [](const PlannedTensor& a, const PlannedTensor& b) {
    return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
  });
  const Layout layout = lay_out(plan);
  write_atomically(path, [&](OutputFile& out) {
    out.write_at(0, std::as_bytes(std::span(layout.head)));
    for (size_t i = 0; i < plan.size(); ++i) {
      const at::Tensor contiguous = tensors.at(plan[i].name).cpu().contiguous();
      out.write_at(layout.offsets[i], bytes_of(contiguous));
    }
  });
}

}  // namespace gramian
