// gramian verify CHECKPOINT: whether a model folder, plain or quantized, is complete and sound.
#include "pipeline/verify.h"

#include <chrono>

#include "base/error.h"
#include "base/resources.h"
#include "cli/common.h"

namespace gramian::cli {
namespace {

void run(const std::string& folder, const Common& common) {
  const auto start = std::chrono::steady_clock::now();
  Log log = common.log();
  const auto pool = common.pool();
  const auto checkpoint = std::make_shared<const Checkpoint>(folder);
  const Verification found = verify(checkpoint, {}, *pool, log);
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : checkpoint->tensors()) bytes += tensor.bytes.size();

  Json json;
  json["checkpoint"] = folder;
  json["verified"] = found.problems.empty();
  json["problems"] = found.problems;
  json["format"] = found.stored ? Json(found.stored->format->name()) : Json(nullptr);
  json["group_size"] = found.stored ? Json(found.stored->grid.group_size) : Json(nullptr);
  json["modules"] = found.modules;
  json["int8_saturated"] = found.int8_saturated;
  json["tensors"] = checkpoint->tensors().size();
  json["weight_bytes"] = bytes;
  json["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  json["peak_rss_bytes"] = peak_rss_bytes();
  if (!found.problems.empty()) {
    common.result(json, "");
    throw Error(ErrorKind::unsound, folder,
                str(found.problems.size(), " problem(s):", below(found.problems)));
  }
  std::string text =
      str(folder, ": sound, ", checkpoint->tensors().size(), " tensors of ", human_bytes(bytes));
  if (found.stored) text += str(", ", found.modules, " modules (", describe(*found.stored), ")");
  if (found.int8_saturated > 0) text += str(", ", found.int8_saturated, " integers that leave int8");
  common.result(json, text + "\n");
}

}  // namespace

void add_verify(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  auto common = std::make_shared<Common>();
  CLI::App& verb =
      *app.add_subcommand("verify", "Check that a model folder, plain or quantized, is complete and sound");
  verb.add_option("checkpoint", *folder, "Model folder")->required();
  add_common(verb, common, [folder, common] { run(*folder, *common); });
}

}  // namespace gramian::cli
