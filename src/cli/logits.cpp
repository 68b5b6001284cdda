// gramian logits MODEL --input IN.safetensors --output OUT.safetensors
#include <filesystem>

#include "base/error.h"
#include "base/interrupt.h"
#include "cli/common.h"
#include "formats/safetensors.h"
#include "runtime/resident_model.h"
#include "tensor/ops.h"

namespace gramian::cli {
namespace {

struct Flags {
  ModelFlags model;
  std::string input, output;
  int64_t batch = 8;
};

void run(const Flags& flags, const Common& common) {
  Log log = common.log();
  const auto pool = common.pool();
  const tensor::InferenceScope inference;
  check_output_file(flags.output, flags.model.folder, flags.input);
  const ReadyRows ready = read_ready_rows(flags.input);
  ResidentModel model(flags.model.folder, flags.model.open, pool);
  refuse_foreign_ids(ready.rows, model.model().spec().vocab, flags.input);
  const auto count = static_cast<int64_t>(ready.rows.size());
  at::Tensor logits = tensor::zeros({count, ready.length, model.model().spec().vocab}, at::kFloat);
  Progress progress(log, "rows", count);
  for (int64_t begin = 0; begin < count; begin += flags.batch) {
    const int64_t end = std::min(begin + flags.batch, count);
    std::vector<TokenRow> batch;
    for (int64_t r = begin; r < end; ++r) {
      if (!ready.rows[static_cast<size_t>(r)].empty()) batch.push_back(ready.rows[static_cast<size_t>(r)]);
    }
    if (batch.empty()) continue;
    throw_if_interrupted();
    const at::Tensor states = model.states(batch);
    int64_t offset = 0;
    for (int64_t r = begin; r < end; ++r) {
      const auto tokens = static_cast<int64_t>(ready.rows[static_cast<size_t>(r)].size());
      if (tokens == 0) continue;
      logits[r]
          .narrow(0, ready.begins[static_cast<size_t>(r)], tokens)
          .copy_(model.logits(states.narrow(0, offset, tokens)));
      offset += tokens;
    }
    progress.update(static_cast<double>(end));
  }
  if (!logits.sum().isfinite().item<bool>())
    log.warn("some logits are NaN or infinite: the model is damaged or overflows; try --dtype float32");
  save_safetensors(flags.output, {{"logits", logits}});
  Json json;
  json["output"] = flags.output;
  json["rows"] = count;
  json["length"] = ready.length;
  json["vocab"] = logits.size(2);
  json["linear_multiplications"] = model.linear_multiplications();
  common.result(json, str("logits of ", count, " rows written to ", flags.output, "\n"));
}

}  // namespace

void add_logits(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb = *app.add_subcommand("logits", "Logits of ready rows, for comparisons with other tools");
  add_model_flags(verb, flags->model);
  add_adapter_flag(verb, flags->model);
  verb.add_option("--input", flags->input,
                  "Safetensors with input_ids [rows, length] and optionally attention_mask")
      ->required();
  verb.add_option("--output", flags->output,
                  "Safetensors to write: logits f32 [rows, length, vocab], 0 where masked")
      ->required();
  add_batch_flag(verb, flags->batch);
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
