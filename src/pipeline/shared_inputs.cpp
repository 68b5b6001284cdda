#include "pipeline/shared_inputs.h"

#include <algorithm>

namespace gramian {
using Json = nlohmann::ordered_json;
namespace {

// Members of one block of a shared group that the forward hands different inputs.
std::vector<std::string> torn_apart(const SharingGroup& group,
                                    const std::map<std::string, size_t>& pause_of) {
  std::map<size_t, size_t> block_pause;
  for (size_t i = 0; i < group.modules.size(); ++i) {
    const size_t pause = pause_of.at(group.modules[i]);
    if (block_pause.try_emplace(group.subset_indices[i], pause).first->second != pause)
      return group.members_in_subset(group.subset_indices[i]);
  }
  return {};
}

}  // namespace

LayerSharing share_layer(const LayerTree& tree, const ModuleTree& pauses, bool explicit_tags,
                         const std::function<const Linear*(const std::string&)>& takes_sum) {
  LayerSharing layer;
  std::vector<std::string> names;
  std::map<std::string, size_t> pause_of;
  for (size_t i = 0; i < pauses.size(); ++i) {
    for (const std::string& name : pauses[i]) {
      names.push_back(name);
      pause_of[name] = i;
    }
  }
  layer.blocks = tree.blocks_of(names);
  const SharingPlan plan(tree, layer.blocks, explicit_tags);
  std::set<std::string> contradicted;
  for (const SharingGroup& group : plan.shared_groups()) {
    const std::vector<std::string> members = torn_apart(group, pause_of);
    if (members.empty()) continue;
    contradicted.insert(group.modules.begin(), group.modules.end());
    layer.contradictions.push_back({{"group", group.key}, {"modules", members}});
  }
  std::vector<Candidate> candidates;
  for (const std::string& name : names) {
    const Linear* linear = takes_sum(name);
    if (linear == nullptr) continue;
    candidates.push_back({.name = name,
                          .columns = linear->in_features,
                          .settings = "",
                          .shares = !contradicted.contains(name)});
  }
  layer.election = elect(plan, candidates);
  return layer;
}

std::vector<Json> LayerSharing::events(size_t layer, const std::set<std::string>& adopted,
                                       int64_t& cumulative) const {
  std::vector<Json> events;
  for (size_t block = 0; block < blocks.size(); ++block) {
    std::map<std::string, std::string> followers;
    std::set<std::string> leaders;
    int64_t count = 0;
    for (const std::string& name : blocks[block]) {
      const auto found = election.leader_of.find(name);
      if (found == election.leader_of.end()) continue;
      followers.insert(*found);
      leaders.insert(found->second);
      if (adopted.contains(name)) ++count;
    }
    if (followers.empty()) continue;
    cumulative += count;
    events.push_back({{"lifecycle_stage", "forward_capture_complete"},
                      {"layer_index", layer},
                      {"subset_index", block + 1},
                      {"subset_total", blocks.size()},
                      {"enabled", true},
                      {"expected_followers", followers.size()},
                      {"adopted_followers", count},
                      {"cumulative_adopted_followers", cumulative},
                      {"leader_count", leaders.size()},
                      {"follower_to_leader", followers},
                      {"subset_module_count", blocks[block].size()},
                      {"status", count == static_cast<int64_t>(followers.size()) ? "verified" : "mismatch"}});
  }
  return events;
}

SharedInputs::SharedInputs(const Model& model, const QuantizePlan& plan, const SharingOptions& options,
                           Log& log)
    : enabled_(options.enabled),
      verified_(model.family().shares_inputs({model.checkpoint().config(), "config.json"})) {
  if (plan.has_head) leader_of_[kHeadName] = kHeadName;
  for (size_t i = 0; i < plan.decoder_layers(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const std::string prefix = model.layer_prefix(index);
    std::map<std::string, const Linear*> summed;
    for (const PlannedModule& module : plan.layers[i]) {
      if (module.quantize || options.all_modules)
        summed.emplace(module.linear.name.substr(prefix.size()), &module.linear);
    }
    const LayerSharing& layer =
        layers_.emplace_back(share_layer(model.family().tree, model.family().modules(model.spec(), index),
                                         enabled_ && verified_, [&](const std::string& name) {
                                           const auto found = summed.find(name);
                                           return found == summed.end() ? nullptr : found->second;
                                         }));
    for (const auto& [name, linear] : summed) {
      const auto found = layer.election.leader_of.find(name);
      leader_of_[linear->name] = prefix + (found == layer.election.leader_of.end() ? name : found->second);
    }
    for (const std::string& warning : layer.election.warnings) log.warn(prefix + warning);
    for (const Json& group : layer.contradictions) {
      log.warn(str(prefix, group.at("group").get<std::string>(),
                   ": the module tree says one input, the forward says several; each is summed alone"));
    }
  }
}

SharedInputs::SharedInputs(const Subject& subject, const QuantizePlan& plan, const SharingOptions& options)
    : enabled_(options.enabled), verified_(true) {
  if (plan.has_head) leader_of_[kHeadName] = kHeadName;
  for (size_t i = 0; i < subject.pauses.size(); ++i) {
    LayerSharing& layer = layers_.emplace_back();
    for (const auto& pause : subject.pauses[i]) {
      std::vector<std::string>& block = layer.blocks.emplace_back();
      std::string leader;
      for (const std::string& name : pause) {
        if (!plan.find(i, name)->quantize && !options.all_modules) continue;
        if (leader.empty() || !enabled_) leader = name;
        leader_of_[name] = leader;
        block.push_back(name.substr(subject.prefixes[i].size()));
        if (name != leader)
          layer.election.leader_of[block.back()] = leader.substr(subject.prefixes[i].size());
      }
    }
  }
}

std::vector<std::vector<Linear*>> SharedInputs::sums(const std::vector<Linear*>& pause) const {
  std::vector<std::vector<Linear*>> sums;
  for (Linear* module : pause) {
    const auto leader = leader_of_.find(module->name);
    if (leader == leader_of_.end()) continue;
    const auto found = std::find_if(sums.begin(), sums.end(), [&](const std::vector<Linear*>& sum) {
      return sum[0]->name == leader->second;
    });
    if (found == sums.end()) {
      sums.push_back({module});
    } else {
      found->push_back(module);
    }
  }
  return sums;
}

int64_t SharedInputs::followers() const {
  int64_t count = 0;
  for (const LayerSharing& layer : layers_) count += static_cast<int64_t>(layer.election.leader_of.size());
  return count;
}

Json SharedInputs::to_json() const {
  Json contradictions = Json::array();
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (Json group : layers_[i].contradictions) {
      group["layer"] = i;
      contradictions.push_back(group);
    }
  }
  return {{"enabled", enabled_},
          {"verified", verified_},
          {"planned", followers()},
          {"contradictions", contradictions}};
}

}  // namespace gramian
