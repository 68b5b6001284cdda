// gramian rotate MODEL -o OUT
#include "pipeline/rotate.h"

#include "cli/common.h"

namespace gramian::cli {
namespace {

struct Flags {
  RotateJob job;
  std::string only;
};

void run(Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  RotateJob& job = flags.job;
  job.residual = flags.only != "heads";
  job.heads = flags.only != "residual";
  const Rotated rotated = rotate(job, *pool, log);
  for (const std::string& line : rotated.left_alone) log.warn("left alone: " + line);
  Json json;
  json["output"] = job.output.string();
  json["seed"] = job.seed;
  json["residual"] = job.residual;
  json["turned_heads"] = rotated.heads;
  json["turned_linears"] = rotated.readers;
  json["left_alone"] = rotated.left_alone;
  json["untied_head_bytes"] = rotated.head_bytes;
  json["bytes"] = rotated.bytes;
  std::string text =
      job.residual ? str("residual stream turned in ", rotated.readers, " linear layers; ") : "";
  if (job.heads) text += str("heads turned in ", rotated.heads, " layers; ");
  if (rotated.head_bytes > 0)
    text += str("the output head is no longer the embedding, ",
                human_bytes(static_cast<double>(rotated.head_bytes)), " more; ");
  common.result(json, str(text, human_bytes(static_cast<double>(rotated.bytes)), " written to ",
                          job.output.string(), "\n"));
}

}  // namespace

void add_rotate(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand("rotate",
                                       "Write the same model in other directions: orthogonal matrices folded "
                                       "into the weights spread outliers over all "
                                       "channels, of the residual stream and between v and o of every head");
  RotateJob& job = flags->job;
  verb.add_option("model", job.source, "Model folder")->required();
  verb.add_option("-o,--output", job.output, "Folder to make; quantize it like any model")->required();
  verb.add_option("--only", flags->only,
                  "residual or heads alone. The stream's rotation needs an output head of its own: a tied "
                  "one is stored "
                  "apart")
      ->check(CLI::IsMember({"residual", "heads"}));
  verb.add_option("--seed", job.seed, "Of the signs in the rotations")->capture_default_str();
  verb.add_flag("--force", job.force, "Replace an output folder that exists");
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
