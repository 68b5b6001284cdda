// gramian inspect MODEL: what a model is made of and which of its layers QQQ can take.
#include <algorithm>

#include "base/error.h"
#include "cli/common.h"
#include "formats/linear_format.h"
#include "formats/qqq.h"
#include "kernels/cpu_level.h"
#include "models/model.h"

namespace gramian::cli {
namespace {

struct Flags {
  std::string model;
  bool cpu = false;
};

Json describe_cpu() {
  Json json;
  json["cpu_level"] = name(cpu_level());
  json["dtype_auto"] = c10::toString(parse_dtype("auto"));
  return json;
}

// A plain checkpoint has its layers' shapes checked; a quantized one is described from its tensors' names.
Json describe_modules(const Model& model, bool quantized) {
  Json modules = Json::array();
  if (quantized) return modules;
  for (const auto& layer : model.survey()) {
    for (const Linear& linear : layer) {
      Json json;
      json["name"] = linear.name;
      json["out_features"] = linear.out_features;
      json["in_features"] = linear.in_features;
      json["bias"] = linear.has_bias;
      for (const int64_t group : {128, -1}) {
        const std::string reason = qqq::unfit_reason(linear.out_features, linear.in_features, group);
        json[group == 128 ? "qqq_g128" : "qqq_row"] = reason.empty() ? Json(true) : Json(reason);
      }
      modules.push_back(std::move(json));
    }
  }
  return modules;
}

// "default", or the distinct types of a model whose layers differ: "default, linear".
std::string rope_types(const DecoderSpec& spec) {
  std::string types;
  for (const RopeSpec& rope : spec.ropes) {
    if (types.find(rope.type) == std::string::npos) types += (types.empty() ? "" : ", ") + rope.type;
  }
  return types.empty() ? "none" : types;
}

// Groups of modules that share an input, of every kind of layer; of a mixture, one expert stands for all.
Json shared_inputs(const Model& model) {
  Json groups = Json::array();
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    for (std::vector<std::string> group : model.family().modules(model.spec(), i)) {
      bool one_for_all = true;
      for (std::string& name : group) {
        // Not those of `shared_experts`.
        const size_t at = name.find(".experts.");
        if (at == std::string::npos) continue;
        one_for_all = name.compare(at, 11, ".experts.0.") == 0;
        if (one_for_all) name.replace(at, 11, ".experts.*.");
      }
      const Json json = group;
      if (one_for_all && std::find(groups.begin(), groups.end(), json) == groups.end())
        groups.push_back(json);
    }
  }
  return groups;
}

Json describe(const std::string& folder) {
  const auto checkpoint = std::make_shared<const Checkpoint>(folder);
  const auto stored = stored_format(checkpoint->config(), folder + "/config.json");
  const Model model(checkpoint, {.dtype = parse_dtype("auto"), .treat_as_tied = true, .quantized = {}});
  const DecoderSpec& spec = model.spec();
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : checkpoint->tensors()) bytes += tensor.bytes.size();
  Json json;
  json["model_type"] = model.family().model_type;
  json["prefix"] = model.prefix();
  json["layers"] = spec.layers();
  json["mtp_layers"] = spec.mtp_layers;
  json["surplus_layers"] = model.surplus_layers();
  json["hidden_size"] = spec.hidden;
  json["heads"] = spec.attention[0].heads;
  json["kv_heads"] = spec.attention[0].kv_heads;
  json["head_dim"] = spec.attention[0].head_dim;
  json["intermediate_size"] = spec.mlp.intermediate;
  json["vocab_size"] = spec.vocab;
  json["rope"] = rope_types(spec);
  json["tied_head"] = spec.tied;
  json["tensors"] = checkpoint->tensors().size();
  json["weight_bytes"] = bytes;
  json["quantization"] = stored ? Json(describe(*stored)) : Json();
  json["shared_inputs"] = shared_inputs(model);
  json["modules"] = describe_modules(model, stored.has_value());
  return json;
}

std::string text_of(const Json& json) {
  std::string text =
      str(json.at("model_type").get<std::string>(), ": ", json.at("layers"), " layers, hidden ",
          json.at("hidden_size"), ", ", json.at("heads"), " heads over ", json.at("kv_heads"), ", head ",
          json.at("head_dim"), ", MLP ", json.at("intermediate_size"), ", vocabulary ", json.at("vocab_size"),
          json.at("tied_head") ? " (tied head)" : "", ", rope ", json.at("rope").get<std::string>(), "\n",
          json.at("tensors"), " tensors, ", human_bytes(json.at("weight_bytes")), "\n");
  if (json.at("prefix") != "model.")
    text += "text part of a larger model, under " + json.at("prefix").get<std::string>() + "\n";
  if (json.at("surplus_layers") != 0)
    text +=
        str(json.at("surplus_layers"), " stored layers beyond num_hidden_layers: not run, not quantized\n");
  if (!json.at("quantization").is_null())
    text += "quantized: " + json.at("quantization").get<std::string>() + "\n";
  text += "linear layers that share an input:";
  for (const auto& group : json.at("shared_inputs")) {
    text += " {";
    for (const auto& name : group) text += (text.back() == '{' ? "" : ", ") + name.get<std::string>();
    text += "}";
  }
  text += "\n";
  std::vector<std::vector<std::string>> rows{{"module", "out x in", "QQQ g128", "QQQ row"}};
  for (const auto& module : json.at("modules")) {
    const auto fit = [&](const char* key) {
      return module.at(key) == true ? std::string("fits") : std::string("no");
    };
    rows.push_back({module.at("name"), str(module.at("out_features"), " x ", module.at("in_features")),
                    fit("qqq_g128"), fit("qqq_row")});
  }
  return rows.size() > 1 ? text + table(rows) : text;
}

void run(const Flags& flags, const Common& common) {
  if (!flags.cpu && flags.model.empty()) {
    throw Error(ErrorKind::invalid_argument, "inspect", "needs a model folder, or --cpu");
  }
  Json json = flags.model.empty() ? Json::object() : describe(flags.model);
  std::string text = flags.model.empty() ? "" : text_of(json);
  if (flags.cpu) {
    json.update(describe_cpu());
    text += str("CPU level ", json.at("cpu_level").get<std::string>(), ", --dtype auto is ",
                json.at("dtype_auto").get<std::string>(), "\n");
  }
  common.result(json, text);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  auto common = std::make_shared<Common>();
  CLI::App& verb =
      *app.add_subcommand("inspect", "Architecture, linear layers, shared inputs and tile fit of a model");
  verb.add_option("model", flags->model, "Model folder");
  verb.add_flag("--cpu", flags->cpu, "Also say which CPU kernels are chosen");
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
