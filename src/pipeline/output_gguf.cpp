#include "pipeline/output_gguf.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "formats/encoded_tensor.h"
#include "pipeline/preflight.h"
#include "pipeline/quantize.h"
#include "solve/encode.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

constexpr const char* kEnding = ".gguf";
constexpr const char* kBlocks = ".blocks";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// llama.cpp's rules for what makes logits, and for the embedding beside a head of its own.
const Codec& head_type(const Codec& asked, int64_t columns) {
  if (columns % 256 != 0 || asked.name == "Q8_0") return fitting_codec(*find_codec("Q8_0"), columns);
  return *find_codec(asked.name == "IQ2_XXS" ? "Q5_K" : "Q6_K");
}
const Codec& embedding_type(const Codec& asked, int64_t columns) {
  return fitting_codec(asked.name == "IQ2_XXS" ? *find_codec("Q2_K") : asked, columns);
}

const Codec& own_type(const StoredTensor& tensor) {
  if (tensor.dtype == DType::f16 || tensor.dtype == DType::bf16)
    return *find_codec(tensor.dtype == DType::f16 ? "F16" : "BF16");
  return *find_codec("F32");
}

bool same_values(const StoredTensor& source, const StoredTensor& written) {
  const bool same = written.shape == source.shape &&
                    written.to_tensor().to(at::kFloat).equal(source.to_tensor().to(at::kFloat));
  source.drop();
  written.drop();
  return same;
}

}  // namespace

uint64_t GgufPlan::bytes() const { return gguf::lay_out(model.metadata, model.types).bytes; }

GgufPlan plan_gguf(const QuantizeJob& job, const Prepared& ready, Log& log) {
  const Checkpoint& source = *ready.subject.checkpoint;
  std::map<std::string, const Codec*> modules;
  for (const auto& layer : ready.plan.layers) {
    for (const PlannedModule& module : layer)
      if (module.quantize) modules[module.linear.tensor_name()] = module.solve.grid.codec;
  }
  const Codec& asked = *ready.plan.solve.grid.codec;
  const bool tied = ready.subject.tied || !source.contains(kHead);
  const auto type = [&](const std::string& name, int64_t columns) -> const Codec* {
    if (const auto found = modules.find(name); found != modules.end()) return found->second;
    if (name == kHead || (name == kEmbedding && tied)) return &head_type(asked, columns);
    if (name == kEmbedding) return &embedding_type(asked, columns);
    return &own_type(source.tensor(name));
  };
  const fs::path given = fs::weakly_canonical(job.source);
  GgufPlan plan;
  plan.model = gguf::plan_model(
      source, (given.extension() == kEnding ? given.stem() : given.filename()).string(), type, log);
  if (ready.importance) {
    for (const gguf::TensorType& tensor : plan.model.types) {
      const auto found = ready.importance->matrix().weights.find(tensor.name);
      if (found == ready.importance->matrix().weights.end() || tensor.shape.size() != 2) continue;
      if (found->second.in_features() == tensor.columns() && !tensor.name.starts_with("blk."))
        plan.importance[tensor.name] = found->second.importance();
    }
  }
  return plan;
}

void describe_job(const QuantizeJob& job, const Prepared& ready, gguf::Metadata& metadata) {
  const Codec& asked = *ready.plan.solve.grid.codec;
  metadata.set("general.file_type",
               job.type_mix == nullptr ? gguf::file_type(asked) : job.type_mix->file_type);
  metadata.set("general.quantization_version", uint32_t{2});
  metadata.set("gramian.method", job.method);
  if (asked.anchored != nullptr)
    metadata.set("gramian.encoder", std::string(ready.plan.solve.grid.anchored ? "anchored" : "search"));
  if (ready.method->statistic != Statistic::importance) return;
  const ImportanceMatrix* file = ready.importance ? &ready.importance->matrix() : nullptr;
  std::set<std::string> entries;
  for (const auto& layer : ready.plan.layers) {
    for (const PlannedModule& module : layer)
      if (module.quantize) entries.insert(module.linear.name);
  }
  std::string dataset;
  if (file != nullptr && !file->datasets.empty()) dataset = file->datasets.front();
  if (file == nullptr && job.calibration) dataset = job.calibration->filename().string();
  const auto number = [](size_t value) { return static_cast<uint32_t>(value); };
  if (file != nullptr) metadata.set("quantize.imatrix.file", job.imatrix->filename().string());
  metadata.set("quantize.imatrix.dataset", dataset);
  metadata.set("quantize.imatrix.entries_count",
               number(file != nullptr ? file->weights.size() : entries.size()));
  metadata.set("quantize.imatrix.chunks_count",
               file != nullptr ? file->chunks : number(ready.rows.rows.size()));
}

fs::path report_of(const fs::path& output) {
  if (output.extension() != kEnding) return output / kReportName;
  fs::path report = output;
  return report += ".report.json";
}

void refuse_occupied_file(const fs::path& output, bool force) {
  refuse_output_file(output, {});
  if (!fs::exists(output) || force) return;
  throw Error(ErrorKind::invalid_argument, output.string(), "the output exists",
              "name another output or pass --force to replace it");
}

OutputGguf::OutputGguf(const fs::path& path, bool force, const fs::path& staging, const Checkpoint& source,
                       const GgufPlan& plan, const QuantizePlan& modules, ThreadPool& pool)
    : path_(plain_path(path)),
      staged_((make_folders(staging), staging / "model.gguf")),
      force_(force),
      source_(source),
      plan_(plan),
      modules_(modules),
      pool_(pool),
      writer_(staged_, plan.model.metadata, plan.model.types) {
  refuse_occupied_file(path, force);
}

OutputGguf::Piece OutputGguf::piece(const std::string& name) const {
  const auto found = plan_.model.places.find(name);
  GRAMIAN_CHECK(found != plan_.model.places.end(), "no place for ", quote_name(name));
  const gguf::TensorPlace place = found->second;
  const gguf::TensorType& type = plan_.model.types[place.tensor];
  const uint64_t size =
      type.bytes() / static_cast<uint64_t>(type.shape.size() == 3 ? type.shape.front() : int64_t{1});
  return {place.tensor, static_cast<uint64_t>(place.expert) * size, size};
}

void OutputGguf::copy(bool begun) {
  if (begun) return;
  std::set<size_t> made;
  for (const auto& layer : modules_.layers) {
    for (const PlannedModule& module : layer)
      if (module.quantize) made.insert(piece(module.linear.tensor_name()).tensor);
  }
  const auto importance = [&](const std::string& name) {
    const auto found = plan_.importance.find(name);
    return found == plan_.importance.end() ? nullptr : &found->second;
  };
  for (size_t i = 0; i < plan_.model.types.size(); ++i) {
    if (made.contains(i)) continue;
    uint64_t at = 0;
    gguf::append_tensor(source_, plan_.model, i, importance, pool_, [&](std::span<const std::byte> bytes) {
      writer_.write(i, at, bytes);
      at += bytes.size();
    });
  }
}

std::map<std::string, std::string> OutputGguf::write(const PlannedModule& module, const PackedParts& parts) {
  const Piece place = piece(module.linear.tensor_name());
  const int64_t heads = plan_.model.sources[place.tensor].heads;
  at::Tensor blocks = parts.at("blocks").contiguous();
  if (heads > 0) blocks = gguf::interleave(blocks, heads);
  const std::span bytes(static_cast<const std::byte*>(blocks.const_data_ptr()), blocks.nbytes());
  GRAMIAN_CHECK(bytes.size() == place.size, module.linear.name, " has ", bytes.size(), " bytes");
  writer_.write(place.tensor, place.at, bytes);
  return {{module.linear.name + kBlocks, digest(bytes)}};
}

bool OutputGguf::keep(const std::map<std::string, std::string>& digests) {
  return std::all_of(digests.begin(), digests.end(), [&](const auto& entry) {
    const std::string module = entry.first.substr(0, entry.first.size() - std::strlen(kBlocks));
    const PlannedModule* planned = modules_.find(module);
    if (planned == nullptr) return false;
    const Piece place = piece(planned->linear.tensor_name());
    const std::vector<std::byte> bytes = writer_.read(place.tensor, place.at, place.size);
    return digest(std::span(bytes)) == entry.second;
  });
}

PackedParts OutputGguf::read(const PlannedModule& module) const {
  const Linear& linear = module.linear;
  const Piece place = piece(linear.tensor_name());
  const std::vector<std::byte> bytes = writer_.read(place.tensor, place.at, place.size);
  const int64_t heads = plan_.model.sources[place.tensor].heads;
  at::Tensor blocks =
      tensor::empty({linear.out_features, static_cast<int64_t>(place.size) / linear.out_features}, at::kByte);
  std::memcpy(blocks.mutable_data_ptr(), bytes.data(), bytes.size());
  PackedParts parts{{"blocks", heads > 0 ? gguf::deinterleave(blocks, heads) : blocks}};
  // The source's own: what the file holds of it is the same values.
  if (linear.has_bias)
    parts["bias"] =
        source_.tensor(linear.bias_name()).to_tensor().to(tensor::scalar_type(module.shape().dtype));
  return parts;
}

void OutputGguf::finish(const QuantizationFields&, const std::optional<bool>&) { writer_.sync(); }

std::vector<std::string> OutputGguf::differences(const Checkpoint& written) const {
  std::vector<std::string> problems;
  for (const auto& [name, place] : plan_.model.places) {
    const Codec& type = *plan_.model.types[place.tensor].codec;
    if (!written.contains(name)) {
      problems.push_back(quote_name(name) + ": is missing");
      continue;
    }
    const StoredTensor& found = written.tensor(name);
    const bool plain = type.block == 1;
    const bool same_type =
        plain || (found.encoding != nullptr && found.encoding->codec == &type && !found.encoding->minus_one);
    if (!same_type || found.shape != source_.tensor(name).shape)
      problems.push_back(str(quote_name(name), ": is not ", type.name, " of the source's shape"));
    // Gemma's norms lose bits on their way through one more.
    else if (type.name == "F32" && !plan_.model.sources[place.tensor].plus_one &&
             !same_values(source_.tensor(name), found))
      problems.push_back(quote_name(name) + ": has other values than the source");
  }
  return problems;
}

void OutputGguf::commit(const nlohmann::ordered_json& report) {
  writer_.sync();
  sync_directory(staged_.parent_path());
  // Somebody may have written it meanwhile.
  refuse_occupied_file(path_, force_);
  std::error_code error;
  fs::rename(staged_, path_, error);
  if (error)
    throw Error(ErrorKind::io, path_.string(), "cannot rename the finished output here: " + error.message());
  sync_directory(path_.parent_path());
  write_atomically(report_of(path_), report.dump(2) + "\n");
}

uint64_t OutputGguf::weight_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const gguf::TensorType& type : plan_.model.types) bytes += type.bytes();
  return bytes;
}

}  // namespace gramian
