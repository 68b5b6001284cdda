#include "pipeline/sharing_probe.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/interrupt.h"
#include "tensor/ops.h"

namespace gramian {
using Json = nlohmann::ordered_json;
namespace {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::string shape_of(const at::Tensor& tensor) {
  std::string text = "[";
  for (const int64_t size : tensor.sizes()) text += str(text.size() > 1 ? ", " : "", size);
  return text + "]";
}

// Why the inputs of two modules are not the same; empty: they are.
std::string difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return str("called ", b.size(), " times, not ", a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].sizes() != b[i].sizes()) return str("shape ", shape_of(b[i]), ", not ", shape_of(a[i]));
    if (a[i].scalar_type() != b[i].scalar_type())
      return str("type ", c10::toString(b[i].scalar_type()), ", not ", c10::toString(a[i].scalar_type()));
    if (!same_bits(a[i], b[i])) {
      return str("values differ by up to ",
                 a[i].to(at::kDouble).sub(b[i].to(at::kDouble)).abs().max().item<double>());
    }
  }
  return {};
}

std::pair<std::string, size_t> place_of(const SharingGroup& group, size_t member) {
  return {group.parent, group.subset_indices[member]};
}

// Runs tasks as the forward does, and keeps what every module reads.
class Recorder {
 public:
  Recorder(RecordedInputs& inputs, std::string prefix, bool all_experts)
      : inputs_(inputs), prefix_(std::move(prefix)), all_experts_(all_experts) {}

  at::Tensor run(Task<at::Tensor> task) {
    Execution execution(std::move(task));
    while (Pause* pause = execution.advance()) {
      throw_if_interrupted();
      if (pause->experts != nullptr) {
        mix(*pause);
        continue;
      }
      // The forward may go on to write into its own tensors.
      const at::Tensor copy = pause->input.clone();
      for (const Linear* module : pause->modules)
        inputs_[module->name.substr(prefix_.size())].push_back(copy);
      multiply(*pause);
    }
    return execution.result();
  }

 private:
  void mix(Pause& pause) {
    const ExpertRows rows(pause.routing, pause.experts->count());
    const at::Tensor& x = pause.input;
    const at::Tensor sum = tensor::zeros(x.sizes(), x.scalar_type());
    for (int64_t e = 0; e < pause.experts->count(); ++e) {
      if (!all_experts_ && rows.count(e) == 0) continue;
      const std::shared_ptr<Expert> expert = pause.experts->open(e);
      const at::Tensor out = run(expert->forward(all_experts_ ? rows.all(x, e) : rows.gather(x, e)));
      rows.add(sum, all_experts_ ? rows.pick(out, e) : out, e);
    }
    pause.outputs = {sum};
    pause.input.reset();
    pause.routing = {};
  }

  RecordedInputs& inputs_;
  std::string prefix_;
  bool all_experts_;
};

}  // namespace

ProbedLayer compare_inputs(const SharingPlan& plan, const RecordedInputs& inputs) {
  ProbedLayer found;
  for (const auto& [name, calls] : inputs) {
    found.calls[name] = static_cast<int64_t>(calls.size());
    if (plan.group_for(name) == nullptr) found.unlisted.push_back(name);
  }
  // By parent and block: those that ran, each with its group.
  std::map<std::pair<std::string, size_t>, std::vector<std::pair<std::string, const SharingGroup*>>>
      neighbours;
  for (const SharingGroup& group : plan.groups()) {
    std::vector<std::string> present;
    std::string leader;
    for (size_t i = 0; i < group.modules.size(); ++i) {
      const std::string& name = group.modules[i];
      const auto entry = inputs.find(name);
      if (entry == inputs.end()) {
        found.missing.push_back(name);
        continue;
      }
      present.push_back(name);
      if (entry->second.empty()) continue;
      neighbours[place_of(group, i)].emplace_back(name, &group);
      if (leader.empty()) leader = name;
    }
    if (present.empty()) continue;
    if (leader.empty()) {
      found.uncalled.push_back(group.key);
      continue;
    }
    const size_t before = found.mismatches.size();
    for (const std::string& name : present) {
      const std::string reason = difference(inputs.at(leader), inputs.at(name));
      if (!reason.empty()) found.mismatches.push_back({group.key, leader, name, reason});
    }
    if (found.mismatches.size() == before) found.verified.push_back(group.key);
  }
  for (const auto& [place, modules] : neighbours) {
    for (size_t i = 0; i < modules.size(); ++i) {
      for (size_t j = i + 1; j < modules.size(); ++j) {
        if (modules[i].second == modules[j].second) continue;
        if (difference(inputs.at(modules[i].first), inputs.at(modules[j].first)).empty())
          found.undeclared.emplace_back(modules[i].first, modules[j].first);
      }
    }
  }
  return found;
}

std::vector<ProbedLayer> probe_sharing(const Model& model, const LayerTree& tree,
                                       const std::vector<TokenRow>& rows,
                                       const SharingProbeOptions& options) {
  const tensor::InferenceScope inference;
  const BatchContext context = model.context(rows);
  at::Tensor hidden = model.embed(model.pack_rows(rows));
  std::vector<ProbedLayer> layers;
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    RecordedInputs inputs;
    std::vector<std::string> names;
    for (const auto& pause : model.family().modules(model.spec(), i)) {
      for (const std::string& name : pause) {
        inputs[name];
        names.push_back(name);
      }
    }
    const auto layer = model.load_layer(i);
    Recorder recorder(inputs, model.layer_prefix(i), options.all_experts);
    hidden = recorder.run(layer->forward(std::move(hidden), context));
    layers.push_back(compare_inputs(SharingPlan(tree, tree.blocks_of(names), true), inputs));
    model.drop_layer(i);
  }
  return layers;
}

Json to_json(const ProbedLayer& layer) {
  Json mismatches = Json::array();
  for (const InputMismatch& m : layer.mismatches)
    mismatches.push_back(
        {{"group", m.group}, {"leader", m.leader}, {"module", m.module}, {"reason", m.reason}});
  return {{"verified", layer.verified},
          {"mismatches", mismatches},
          {"undeclared", layer.undeclared},
          {"missing_modules", layer.missing},
          {"unlisted_modules", layer.unlisted},
          {"uncalled", layer.uncalled},
          {"call_counts", layer.calls},
          {"has_errors", layer.has_errors()},
          {"fully_verified", layer.fully_verified()}};
}

}  // namespace gramian
