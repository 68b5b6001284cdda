// gramian convert MODEL -o FILE.gguf
#include "formats/gguf/convert.h"

#include <filesystem>

#include "base/error.h"
#include "cli/common.h"
#include "formats/checkpoint.h"
#include "tensor/ops.h"

namespace gramian::cli {
namespace {

struct Flags {
  std::filesystem::path model, output;
  std::string type = "F16";
};

void run(const Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  const tensor::InferenceScope inference;
  check_output_file(flags.output, flags.model, flags.model);
  const Checkpoint checkpoint(flags.model);
  const std::string name = std::filesystem::weakly_canonical(flags.model).filename().string();
  gguf::convert(checkpoint, flags.output, {.type = find_codec(flags.type), .name = name}, *pool, log);
  const gguf::File written(flags.output);
  const auto bytes = std::filesystem::file_size(flags.output);
  Json json;
  json["output"] = flags.output.string();
  json["architecture"] = *written.metadata().string("general.architecture");
  json["type"] = flags.type;
  json["tensors"] = written.tensors().size();
  json["tokenizer"] = written.metadata().find("tokenizer.ggml.tokens") != nullptr;
  json["bytes"] = bytes;
  common.result(json, str(written.tensors().size(), " tensors, ", human_bytes(static_cast<double>(bytes)),
                          ", written to ", flags.output.string(), "\n"));
}

}  // namespace

void add_convert(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand("convert", "Write a model folder as one GGUF file");
  verb.add_option("model", flags->model, "Model folder")->required();
  verb.add_option("-o,--output", flags->output, "GGUF file to write")->required();
  verb.add_option("--type", flags->type, "Type of the weight matrices")
      ->check(CLI::IsMember({"F32", "F16", "BF16"}))
      ->capture_default_str();
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
