#include "pipeline/layer_record.h"

#include "base/error.h"

namespace gramian {
using Json = nlohmann::ordered_json;

void LayerRecord::add(const LayerRecord& other) {
  modules.insert(modules.end(), other.modules.begin(), other.modules.end());
  starved_experts.insert(starved_experts.end(), other.starved_experts.begin(), other.starved_experts.end());
  fallbacks += other.fallbacks;
  linear_multiplications += other.linear_multiplications;
  sums += other.sums;
  accumulations += other.accumulations;
  adopted += other.adopted;
  parked_bytes += other.parked_bytes;
  seconds += other.seconds;
  for (const auto& [stage, spent] : other.stages) stages[stage] += spent;
}

Json LayerRecord::to_json() const {
  return {{"modules", modules},
          {"starved_experts", starved_experts},
          {"fallbacks", fallbacks},
          {"linear_multiplications", linear_multiplications},
          {"sums", sums},
          {"accumulations", accumulations},
          {"adopted", adopted},
          {"parked_bytes", parked_bytes},
          {"seconds", seconds},
          {"stages", stages},
          {"digests", digests},
          {"held_out", held_out},
          {"input_digest", input_digest}};
}

LayerRecord LayerRecord::from_json(const Json& json, const std::string& where) {
  try {
    LayerRecord record;
    json.at("modules").get_to(record.modules);
    json.at("starved_experts").get_to(record.starved_experts);
    json.at("fallbacks").get_to(record.fallbacks);
    json.at("linear_multiplications").get_to(record.linear_multiplications);
    json.at("sums").get_to(record.sums);
    json.at("accumulations").get_to(record.accumulations);
    json.at("adopted").get_to(record.adopted);
    json.at("parked_bytes").get_to(record.parked_bytes);
    json.at("seconds").get_to(record.seconds);
    for (const auto& [stage, seconds] : json.at("stages").items()) seconds.get_to(record.stages[stage]);
    for (const auto& [name, digest] : json.at("digests").items()) digest.get_to(record.digests[name]);
    record.held_out = json.at("held_out");
    json.at("input_digest").get_to(record.input_digest);
    return record;
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::corrupt_data, where, "a layer's record is not what this program writes",
                "pass --force to begin the job again");
  }
}

}  // namespace gramian
