#include "pipeline/statistics_file.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "pipeline/job_identity.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
namespace {

constexpr const char* kIdentity = "identity";

std::vector<PlannedTensor> plan_tensors(size_t identity_bytes, const LayerInputs& inputs) {
  std::vector<PlannedTensor> plan;
  for (const auto& layer : inputs) {
    for (const auto& modules : layer) {
      const int64_t columns = modules[0].in_features;
      plan.push_back({modules[0].name + ".hessian", DType::f32, {columns, columns}});
    }
  }
  // Narrow types last, so that all are aligned.
  for (const auto& layer : inputs) {
    for (const auto& modules : layer) plan.push_back({modules[0].name + ".tokens", DType::i64, {1}});
  }
  for (const auto& layer : inputs) {
    for (const auto& modules : layer) plan.push_back({modules[0].name + ".expert", DType::u8, {1}});
  }
  plan.push_back({kIdentity, DType::u8, {static_cast<int64_t>(identity_bytes)}});
  return plan;
}

fs::path made(const fs::path& folder) {
  make_folders(folder);
  return folder;
}

std::string_view text_of(const StoredTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

fs::path partial(fs::path file) { return file += ".partial"; }

}  // namespace

StatisticsWriter::StatisticsWriter(fs::path file, const std::string& identity, const LayerInputs& inputs)
    : file_(std::move(file)),
      folder_(made(partial(file_))),
      inputs_(inputs),
      writer_(folder_, plan_tensors(identity.size(), inputs), std::numeric_limits<uint64_t>::max()) {
  writer_.write(kIdentity, std::as_bytes(std::span(identity)));
}

bool StatisticsWriter::begun(const fs::path& file, const std::string& identity) {
  const fs::path begun = partial(file) / kSingleWeightsName;
  if (!fs::exists(begun)) return false;
  const SafetensorsFile part(begun);
  return part.contains(kIdentity) && text_of(part.tensor(kIdentity)) == identity;
}

void StatisticsWriter::keep(size_t layer) {
  for (const auto& modules : inputs_[layer]) {
    for (const char* part : {".hessian", ".tokens", ".expert"}) writer_.keep(modules[0].name + part);
  }
}

void StatisticsWriter::write(const PauseStatistics& statistics) {
  const std::string& name = statistics.modules[0]->name;
  const int64_t columns = statistics.modules[0]->in_features;
  writer_.write(name + ".hessian", statistics.hessian.defined()
                                       ? statistics.hessian
                                       : tensor::zeros({columns, columns}, at::kFloat));
  writer_.write(name + ".tokens", tensor::full({1}, static_cast<double>(statistics.tokens), at::kLong));
  writer_.write(name + ".expert", tensor::full({1}, statistics.expert ? 1 : 0, at::kByte));
}

void StatisticsWriter::finish() {
  writer_.finish();
  fs::rename(folder_ / kSingleWeightsName, file_);
  fs::remove_all(folder_);
  sync_directory(fs::absolute(file_).parent_path());
}

StatisticsFile::StatisticsFile(const fs::path& file, const Json& identity) : file_(file), path_(file) {
  if (!file_.contains(kIdentity)) {
    throw Error(ErrorKind::corrupt_data, file.string(), "holds no statistics of this program",
                "name a file of --statistics, or one that does not exist");
  }
  const std::string text(text_of(file_.tensor(kIdentity)));
  const std::vector<std::string> changes = identity_differences(parse_json(text, file.string()), identity);
  if (changes.empty()) return;
  throw Error(ErrorKind::invalid_argument, file.string(),
              "these statistics are of something else:" + below(changes),
              "\nname another file for --statistics, or remove this one");
}

PauseStatistics StatisticsFile::read(const std::vector<Linear*>& modules) const {
  const std::string& name = modules[0]->name;
  const int64_t columns = modules[0]->in_features;
  const StoredTensor &hessian = file_.tensor(name + ".hessian"), &tokens = file_.tensor(name + ".tokens"),
                     &expert = file_.tensor(name + ".expert");
  if (hessian.dtype != DType::f32 || hessian.shape != std::vector<int64_t>{columns, columns} ||
      tokens.dtype != DType::i64 || tokens.shape != std::vector<int64_t>{1} || expert.dtype != DType::u8 ||
      expert.shape != std::vector<int64_t>{1}) {
    throw Error(ErrorKind::corrupt_data, path_.string(), "the statistics of " + name + " have another form",
                "remove the file");
  }
  PauseStatistics statistics;
  statistics.modules = modules;
  statistics.tokens = tokens.to_tensor().item<int64_t>();
  statistics.expert = expert.to_tensor().item<int64_t>() != 0;
  if (statistics.tokens > 0) statistics.hessian = hessian.to_tensor().clone();
  hessian.drop();
  return statistics;
}

}  // namespace gramian
