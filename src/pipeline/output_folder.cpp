#include "pipeline/output_folder.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "formats/model_files.h"
#include "pipeline/verify.h"

namespace gramian {
namespace fs = std::filesystem;

void refuse_replacing(const fs::path& output, const std::vector<fs::path>& inputs) {
  const auto plain = [](const fs::path& path) {
    const fs::path absolute = fs::weakly_canonical(fs::absolute(path));
    return absolute.has_filename() ? absolute : absolute.parent_path();
  };
  const fs::path folder = plain(output);
  for (const fs::path& input : inputs) {
    const fs::path file = plain(input);
    if (std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first != folder.end()) continue;
    throw Error(ErrorKind::invalid_argument, output.string(),
                "the output would replace what the job reads, the source " + input.string(),
                "name another output");
  }
  if (fs::is_directory(output) && !fs::is_empty(output) && !fs::exists(output / "config.json")) {
    throw Error(ErrorKind::invalid_argument, output.string(),
                "--force replaces checkpoints; this folder has no config.json", "name another output");
  }
}

void write_folder(const fs::path& path, bool force, const std::function<void(const fs::path&)>& write) {
  StagedDirectory::refuse_occupied(path, force);
  fs::path staging = plain_path(path);
  staging += ".partial";
  fs::remove_all(staging);
  StagedDirectory folder(path, force, staging);
  try {
    write(folder.path());
    folder.commit();
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(staging, ignored);
    throw;
  }
}

void copy_side_files(const Checkpoint& source, const fs::path& folder) {
  for (const auto& [name, text] : told_files(source.side_folder())) write_atomically(folder / name, text);
  for (const fs::path& file : source.side_files().files) {
    fs::create_directories((folder / file).parent_path());
    copy_atomically(source.side_folder() / file, folder / file);
  }
}

OutputFolder::OutputFolder(const fs::path& path, bool force, const fs::path& staging,
                           const Checkpoint& source, const QuantizePlan& plan, uint64_t shard_bytes_max)
    : source_(source),
      plan_(plan),
      staged_(path, force, staging),
      writer_(staged_.path(), plan.tensors, shard_bytes_max) {}

void OutputFolder::copy(bool begun) {
  // A killed job may have left half of a file under a temporary name.
  for (const auto& entry : fs::directory_iterator(staged_.path())) {
    if (entry.path().extension() != ".safetensors") fs::remove_all(entry.path());
  }
  const auto each = [&](const std::vector<std::string>& names, const auto& write) {
    for (const std::string& name : names) {
      if (begun) {
        writer_.keep(name);
        continue;
      }
      const StoredTensor& tensor = source_.tensor(name);
      write(name, tensor);
      tensor.drop();
    }
  };
  each(plan_.copied, [&](const auto& name, const auto& tensor) { writer_.write(name, tensor.bytes); });
  each(plan_.decoded, [&](const auto& name, const auto& tensor) {
    writer_.write(name, tensor.to_tensor().to(at::kBFloat16));
  });
  copy_side_files(source_, staged_.path());
}

std::map<std::string, std::string> OutputFolder::write(const PlannedModule& module,
                                                       const PackedParts& parts) {
  std::map<std::string, std::string> digests;
  for (const auto& [part, tensor] : parts) {
    const std::string name = module.linear.name + "." + part;
    const at::Tensor plain = tensor.contiguous();
    const std::span bytes(static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes());
    writer_.write(name, plain);
    digests[name] = digest(bytes);
  }
  return digests;
}

bool OutputFolder::keep(const std::map<std::string, std::string>& digests) {
  for (const auto& [name, expected] : digests) {
    const StoredTensor tensor = writer_.read(name);
    if (digest(tensor.bytes) != expected) return false;
  }
  for (const auto& [name, expected] : digests) writer_.keep(name);
  return true;
}

PackedParts OutputFolder::read(const PlannedModule& module) const {
  PackedParts parts;
  for (const PlannedTensor& part : module.format->parts(module.shape(), module.solve.grid))
    parts[part.name] = writer_.read(module.linear.name + "." + part.name).to_tensor();
  return parts;
}

void OutputFolder::finish(const QuantizationFields& quantization, const std::optional<bool>& tied) {
  writer_.finish();
  const nlohmann::ordered_json fields = plan_.format->config(quantization);
  nlohmann::ordered_json config = source_.config();
  if (tied) config["tie_word_embeddings"] = *tied;
  // Of a text part, readers ask that.
  if (tied && config.contains("text_config") && config.at("text_config").is_object())
    config["text_config"]["tie_word_embeddings"] = *tied;
  config["quantization_config"] = fields;
  write_atomically(staged_.path() / "config.json", config.dump(2) + "\n");
  write_atomically(staged_.path() / "quantize_config.json", fields.dump(2) + "\n");
}

std::vector<std::string> OutputFolder::differences(const Checkpoint& written) const {
  return compare_with_source(written, source_, plan_);
}

void OutputFolder::commit(const nlohmann::ordered_json& report) {
  write_atomically(staged_.path() / kReportName, report.dump(2) + "\n");
  staged_.commit();
}

}  // namespace gramian
