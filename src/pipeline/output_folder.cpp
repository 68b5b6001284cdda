#include "pipeline/output_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

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

OutputFolder::OutputFolder(const fs::path& path, bool force, const Checkpoint& source,
                           const QuantizePlan& plan, uint64_t shard_bytes_max)
    : source_(source), staged_(path, force), writer_(staged_.path(), plan.tensors, shard_bytes_max) {
  for (const std::string& name : plan.copied) {
    const StoredTensor& tensor = source.tensor(name);
    writer_.write(name, tensor.bytes);
    tensor.file->drop(tensor.bytes);
  }
  for (const fs::path& file : source.side_files().files) {
    fs::create_directories((staged_.path() / file).parent_path());
    copy_atomically(source.folder() / file, staged_.path() / file);
  }
}

void OutputFolder::write(const std::string& module, const qqq::Packed& packed) {
  writer_.write(module + ".B", packed.B);
  writer_.write(module + ".s_channel", packed.s_channel);
  if (packed.s_group.defined() && packed.s_group.numel() > 0)
    writer_.write(module + ".s_group", packed.s_group);
  if (packed.bias.defined()) writer_.write(module + ".bias", packed.bias);
}

void OutputFolder::finish(const qqq::ConfigFields& quantization, bool tie_head) {
  writer_.finish();
  const nlohmann::ordered_json fields = qqq::quantization_config(quantization);
  nlohmann::ordered_json config = source_.config();
  if (tie_head) config["tie_word_embeddings"] = true;
  config["quantization_config"] = fields;
  write_atomically(staged_.path() / "config.json", config.dump(2) + "\n");
  write_atomically(staged_.path() / "quantize_config.json", fields.dump(2) + "\n");
}

void OutputFolder::commit(const nlohmann::ordered_json& report) {
  write_atomically(staged_.path() / kReportName, report.dump(2) + "\n");
  staged_.commit();
}

}  // namespace gramian
