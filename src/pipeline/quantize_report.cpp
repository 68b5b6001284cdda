// QuantizeRun::report(): what docs/report.md describes.
#include "pipeline/quantize_run.h"
#include "stats/gram.h"

namespace gramian {
using Json = nlohmann::ordered_json;

void QuantizeRun::report_types(Json& json) const {
  const GridOptions& grid = plan_.solve.grid;
  json["type"] = grid.codec->name;
  json["nominal_bits_per_weight"] =
      8.0 * static_cast<double>(grid.codec->bytes) / static_cast<double>(grid.codec->block);
  json["type_mix"] = job_.type_mix == nullptr ? Json(nullptr) : Json(job_.type_mix->name);
  json["encoder"] = grid.anchored ? "anchored" : "search";
  json["importance_weighted"] = plan_.solve.importance_weighted;
  json["imatrix"] = job_.imatrix ? Json(job_.imatrix->string()) : Json(nullptr);
  std::map<std::string, int64_t> weights;
  Json fallbacks = Json::array();
  for (const auto& layer : plan_.layers) {
    for (const PlannedModule& module : layer) {
      if (!module.quantize) continue;
      const std::string type(module.solve.grid.codec->name);
      weights[type] += module.linear.in_features * module.linear.out_features;
      if (module.fell_back)
        fallbacks.push_back(
            {{"name", module.linear.name}, {"type", type}, {"in_features", module.linear.in_features}});
    }
  }
  Json& shares = json["type_shares"] = Json::object();
  for (const auto& [type, count] : weights)
    shares[type] = static_cast<double>(count) / static_cast<double>(plan_.quantized_weights());
  json["type_fallbacks"] = std::move(fallbacks);
  // What is no module: the embedding and the head.
  Json& others = json["other_types"] = Json::object();
  for (const gguf::TensorType& tensor : ready_.gguf->model.types) {
    if (!tensor.name.starts_with("blk.") && tensor.shape.size() == 2)
      others[tensor.name] = tensor.codec->name;
  }
}

Json QuantizeRun::report() const {
  const RowSet& rows = rows_;
  const Method& method = method_;
  int64_t source_weights = 0;
  for (const auto& [name, tensor] : subject_.checkpoint->tensors()) {
    source_weights += tensor.values();
  }
  Json json;
  json["gramian"] = GRAMIAN_VERSION;
  json["method"] = method.name;
  json["format"] = plan_.format->name();
  json["grid"] = to_text(plan_.solve.grid.kind);
  json["bits"] = plan_.solve.grid.bits;
  json["symmetric"] = plan_.solve.grid.symmetric;
  json["activation_bits"] = plan_.solve.grid.activation_bits;
  json["group_size"] = plan_.solve.grid.group_size;
  json["mse"] = plan_.solve.grid.mse;
  if (plan_.solve.grid.kind == GridKind::nvfp4) json["search"] = describe(plan_.solve.search);
  if (plan_.solve.grid.codec != nullptr) report_types(json);
  if (method.compensates()) {
    json["damp_percent"] = plan_.solve.damp_percent;
    json["order"] = to_text(plan_.solve.order);
    json["static_groups"] = plan_.solve.static_groups;
    json["refine"] = plan_.solve.refine;
    json["refine_scales"] = plan_.solve.refine_scales;
  }
  if (!job_.command.empty()) json["command"] = job_.command;
  json["compat"] = job_.compat_gptqmodel ? Json("gptqmodel") : Json(nullptr);
  json["dtype"] = c10::toString(subject_.dtype);
  json["source_scan"] = !job_.skip_scan;
  json["rows_asked"] = rows.asked ? Json(*rows.asked) : Json(nullptr);
  json["rows"] = rows.rows.size();
  json["rows_blank"] = rows.blank;
  json["rows_split"] = rows.split;
  json["rows_policy"] = rows.policy;
  json["sequence_length"] = rows.sequence_length ? Json(*rows.sequence_length) : Json(nullptr);
  json["tokens_asked"] =
      rows.asked && rows.sequence_length ? Json(*rows.asked * *rows.sequence_length) : Json(nullptr);
  json["tokens"] = tokens_;
  json["batches"] = batches_;
  json["lanes"] = job_.lanes;
  json["ranks"] = job_.ranks == nullptr ? 1 : job_.ranks->size();
  LayerRecord total;
  for (const LayerRecord& layer : done_) total.add(layer);
  json["linear_multiplications"] = total.linear_multiplications;
  json["sequential"] = to_text(job_.sequential);
  json["statistics"] = job_.statistics.empty() ? Json(nullptr) : Json(job_.statistics.string());
  if (method.calibrated()) {
    const AccumulationSettings& sums = job_.accumulation;
    json["hessian_input_dtype"] = to_text(sums.input);
    json["staging_dtype"] = sums.staging ? Json(to_text(*sums.staging)) : Json(nullptr);
    json["chunk_size"] = sums.chunk_size > 0 ? Json(sums.chunk_size) : Json(nullptr);
    json["chunk_bytes"] = sums.chunk_bytes > 0 ? Json(sums.chunk_bytes) : Json(nullptr);
    json["hessian_products"] = resolve_on_cpu(sums, subject_.dtype).bf16_products ? "bfloat16" : "float32";
  }
  if (method.calibrated()) {
    Json& shared = json["shared_inputs"] = shared_.to_json();
    shared["adopted"] = total.adopted;
    shared["sums"] = total.sums;
    shared["accumulations"] = total.accumulations;
  }
  json["activations_parked_bytes"] = total.parked_bytes;
  json["fallbacks"] = total.fallbacks;
  json["experts"] = job_.all_experts ? "all" : "routed";
  json["min_expert_tokens"] = job_.min_expert_tokens;
  json["experts_below_minimum"] = total.starved_experts;
  json["held_out"] = held_out_report();
  json["skipped"] = plan_.skipped();
  json["bits_per_weight"] =
      static_cast<double>(plan_.packed_bits()) / static_cast<double>(plan_.quantized_weights());
  json["bits_per_weight_total"] =
      8.0 * static_cast<double>(output_->weight_bytes()) / static_cast<double>(source_weights);
  json["weight_bytes"] = output_->weight_bytes();
  json["verified"] = true;  // finish() has thrown otherwise
  json["resumed_at_layer"] = resumed_at_ > 0 ? Json(resumed_at_) : Json(nullptr);
  json["stages"] = total.stages;
  json["modules"] = total.modules;
  return json;
}

}  // namespace gramian
