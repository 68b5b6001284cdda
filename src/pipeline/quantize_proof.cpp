// QuantizeRun's held-out rows: what a layer has lost is said when it is finished.
#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "base/interrupt.h"
#include "formats/json.h"
#include "pipeline/quantize_run.h"

namespace gramian {
using Json = nlohmann::ordered_json;
namespace {

std::string percent(const Json& share) { return fixed(100 * share.get<double>(), 1) + " %"; }

}  // namespace

void QuantizeRun::hold_out(std::unique_ptr<HeldOut> rows) {
  held_out_ = std::move(rows);
  const size_t finished = std::min(done_.size(), plan_.decoder_layers());
  if (finished == plan_.decoder_layers()) return;
  if (finished > 0) log_.info(str("the held-out rows go through ", finished, " finished layers again"));
  for (size_t i = 0; i < finished; ++i) {
    throw_if_interrupted();
    watchdog_.at(str("layer ", i, ", held-out rows"));
    held_out_->pass_layer(static_cast<int64_t>(i), as_stored(i));
  }
}

HeldOut::Stored QuantizeRun::as_stored(size_t layer) const {
  return [this, layer](const Linear& linear) -> std::shared_ptr<const LinearOp> {
    const PlannedModule& module = *plan_.find(layer, linear.name);
    if (!module.quantize) return nullptr;
    return stored_replacement(*module.format, output_->read(module), linear, module.solve.grid,
                              subject_.dtype);
  };
}

void QuantizeRun::prove(size_t layer) {
  if (held_out_ == nullptr) return;
  at(layer, "held-out rows");
  double seconds = 0;
  const HeldOut::Loss loss =
      timed(seconds, [&] { return held_out_->run_layer(static_cast<int64_t>(layer), as_stored(layer)); });
  now_.stages["held out"] += seconds;
  const Json* worst = nullptr;
  Json flagged = Json::array();
  const auto of = [](const Json& module) {
    const Json& error = module.at("held_out_error");
    return error.is_number() ? error.get<double>() : -1;
  };
  for (Json& module : now_.modules) {
    const auto found = loss.modules.find(module.at("name").get<std::string>());
    module["held_out_error"] = number_or_null(found == loss.modules.end() ? std::nan("") : found->second);
  }
  for (const Json& module : now_.modules) {
    if (of(module) >= 0 && (worst == nullptr || of(module) > of(*worst))) worst = &module;
    if (of(module) > job_.held_out_limit)
      flagged.push_back({{"module", module.at("name")},
                         {"error", module.at("held_out_error")},
                         {"reason", likely_reason(module)}});
  }
  now_.held_out = {{"layer", layer},
                   {"error", number_or_null(loss.own)},
                   {"accumulated", number_or_null(loss.since_first)},
                   {"worst_module", worst == nullptr ? Json(nullptr) : worst->at("name")},
                   {"flagged", flagged}};
  Json event = now_.held_out;
  event["seconds"] = seconds;
  telemetry_.event("held_out", event);
  if (loss.own <= job_.held_out_limit && flagged.empty()) return;
  std::string line =
      str("layer ", layer, ": its output on held-out rows is ", fixed(100 * loss.own, 1), " % off");
  if (worst != nullptr) {
    line += str("; ", worst->at("name").get<std::string>(), " loses most, ",
                percent(worst->at("held_out_error")));
    const std::string reason = likely_reason(*worst);
    line += reason.empty() ? "" : ": " + reason;
    if (flagged.size() > 1)
      line += str("; ", flagged.size(), " linear layers lose more than ", percent(Json(job_.held_out_limit)));
  }
  log_.warn(line);
}

Json QuantizeRun::held_out_report() const {
  if (held_out_ == nullptr) return nullptr;
  Json json{{"rows", held_out_->rows()}, {"tokens", held_out_->tokens()}, {"limit", job_.held_out_limit}};
  json["layers"] = Json::array();
  for (const LayerRecord& layer : done_) {
    if (!layer.held_out.is_null()) json["layers"].push_back(layer.held_out);
  }
  return json;
}

}  // namespace gramian
