// gramian convert MODEL -o FILE.gguf, gramian convert CHECKPOINT -o FOLDER --to FORM
#include "formats/gguf/convert.h"

#include <filesystem>

#include "base/error.h"
#include "cli/common.h"
#include "formats/checkpoint.h"
#include "formats/gguf/model_reader.h"
#include "formats/linear_format.h"
#include "pipeline/output_folder.h"
#include "pipeline/plain_copy.h"
#include "pipeline/repack.h"
#include "pipeline/unstack.h"
#include "tensor/ops.h"

namespace gramian::cli {
namespace {

struct Flags {
  std::filesystem::path model, output;
  std::string type = "F16";
  RepackOptions repack;
};

// A GGUF file as a Hugging Face folder.
void write_values(const Flags& flags, const Checkpoint& checkpoint, const Common& common, Log& log) {
  if (flags.repack.to != "bf16" && flags.repack.to != "fp16")
    throw Error(ErrorKind::unsupported, flags.model.string(),
                "is a GGUF file, whose codes no other format has", "convert it --to bf16, and quantize that");
  const DType dtype = flags.repack.to == "bf16" ? DType::bf16 : DType::f16;
  const uint64_t bytes = write_plain(checkpoint, flags.output, dtype, flags.repack.force, log);
  Json json;
  json["output"] = flags.output.string();
  json["to"] = flags.repack.to;
  json["tensors"] = checkpoint.tensors().size();
  json["weight_bytes"] = bytes;
  common.result(json,
                str(checkpoint.tensors().size(), " tensors as ", flags.repack.to, ", ",
                    human_bytes(static_cast<double>(bytes)), ", written to ", flags.output.string(), "\n"));
}

void write_checkpoint(const Flags& flags, const Common& common, Log& log) {
  refuse_replacing(flags.output, {flags.model});
  const Checkpoint checkpoint(flags.model);
  if (gguf::is_model_file(flags.model)) return write_values(flags, checkpoint, common, log);
  const Repacked made = repack(checkpoint, flags.output, flags.repack, log);
  Json json;
  json["output"] = flags.output.string();
  json["to"] = flags.repack.to;
  json["modules"] = made.modules;
  json["weight_bytes"] = made.weight_bytes;
  common.result(json, str(made.modules, " modules as ", flags.repack.to, ", ",
                          human_bytes(static_cast<double>(made.weight_bytes)), ", written to ",
                          flags.output.string(), "\n"));
}

void run(const Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  const tensor::InferenceScope inference;
  if (flags.repack.to != "gguf") return write_checkpoint(flags, common, log);
  check_output_file(flags.output, flags.model, flags.model);
  const auto source = std::make_shared<const Checkpoint>(flags.model);
  if (const auto stored = stored_format(source->config(), (flags.model / "config.json").string()))
    throw Error(ErrorKind::unsupported, flags.model.string(), "is quantized (" + describe(*stored) + ")",
                "convert it --to bf16 first, and that to GGUF");
  const std::filesystem::path given = std::filesystem::weakly_canonical(flags.model);
  const std::string name = (gguf::is_model_file(given) ? given.stem() : given.filename()).string();
  gguf::convert(*unstacked(source), flags.output, {.type = find_codec(flags.type), .name = name}, *pool, log);
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
  CLI::App& verb = *app.add_subcommand(
      "convert",
      "Write a model as one GGUF file, a GGUF file as a model folder, or a quantized model in another form");
  verb.add_option("model", flags->model, "Model folder")->required();
  verb.add_option("-o,--output", flags->output, "GGUF file to write, or folder to make")->required();
  verb.add_option("--to", flags->repack.to,
                  "gguf, or of a GGUF file or a quantized checkpoint bf16 or fp16 (decoded weights), of the "
                  "latter gptq, gptq_v2 or "
                  "compressed-tensors "
                  "(the same codes, or refused)")
      ->check(CLI::IsMember({"gguf", "bf16", "fp16", "gptq", "gptq_v2", "compressed-tensors"}))
      ->default_val("gguf");
  verb.add_flag("--force", flags->repack.force, "Replace an output folder that exists");
  verb.add_option("--type", flags->type, "Type of the weight matrices of a GGUF file")
      ->transform(CLI::IsMember({"F32", "F16", "BF16"}, CLI::ignore_case))
      ->capture_default_str();
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
