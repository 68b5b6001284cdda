// gramian inspect MODEL: what a model is made of and which of its layers QQQ can take.
#include <algorithm>

#include "base/error.h"
#include "cli/common.h"
#include "cli/inspect_recipe.h"
#include "formats/linear_format.h"
#include "formats/qqq_format.h"
#include "kernels/cpu_level.h"
#include "models/model.h"
#include "pipeline/budget.h"
#include "pipeline/shared_inputs.h"
#include "tensor/ops.h"

namespace gramian::cli {
namespace {

struct Flags {
  std::string model;
  bool cpu = false;
  bool plan = false;
  std::filesystem::path recipe;
};

// The job whose plan is shown.
constexpr int64_t kPlanRows = 128, kPlanTokens = 512;

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

// One expert stands for all.
std::string with_any_expert(std::string name) {
  const size_t at = name.find(".experts.0.");
  return at == std::string::npos ? name : name.replace(at, 11, ".experts.*.");
}
bool is_other_expert(const std::string& name) {
  return name.find(".experts.") != std::string::npos && name.find(".experts.0.") == std::string::npos;
}
Json shown(const std::vector<std::string>& names) {
  Json json = Json::array();
  for (const std::string& name : names) {
    if (!is_other_expert(name)) json.push_back(with_any_expert(name));
  }
  return json;
}

// The module tree, the groups that its tags make and how many sums they save, of every kind of layer.
Json describe_sharing(const Model& model) {
  const Family& family = model.family();
  const bool verified = family.shares_inputs({model.checkpoint().config(), "config.json"});
  Json kinds = Json::array();
  int64_t all = 0;
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    static const Linear kAny;
    const LayerSharing layer = share_layer(family.tree, family.modules(model.spec(), i), verified,
                                           [](const std::string&) { return &kAny; });
    Json kind;
    kind["blocks"] = Json::array();
    for (const auto& block : layer.blocks) kind["blocks"].push_back(shown(block));
    kind["groups"] = Json::array();
    for (const SharingGroup& group : SharingPlan(family.tree, layer.blocks, true).shared_groups()) {
      if (is_other_expert(group.leader())) continue;
      kind["groups"].push_back({{"key", with_any_expert(group.key)}, {"modules", shown(group.modules)}});
    }
    kind["followers"] = layer.election.leader_of.size();
    all += static_cast<int64_t>(layer.election.leader_of.size());
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const Json& other) {
      return other.at("blocks") == kind.at("blocks") && other.at("followers") == kind.at("followers");
    });
    if (known != kinds.end()) {
      (*known)["layers"].push_back(i);
      continue;
    }
    kind["layers"] = {i};
    kinds.push_back(std::move(kind));
  }
  return {{"verified", verified}, {"followers", all}, {"kinds", kinds}};
}

// Values that the file holds, and those of linear layers and head that one token meets, of which each costs two operations;
// what attention multiplies beside them grows with the row.
void count_work(const Model& model, Json& json) {
  const DecoderSpec& spec = model.spec();
  int64_t values = 0;
  double met = static_cast<double>(spec.vocab) * static_cast<double>(spec.hidden);
  for (const auto& [name, tensor] : model.checkpoint().tensors()) values += tensor.values();
  const auto layers = model.survey();
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const Linear& linear : layers[i]) {
      double share = 1;
      if (linear.name.find(".experts.") != std::string::npos) {
        const RouterSpec& router = spec.mixture[i].router;
        share = static_cast<double>(router.top_k) / static_cast<double>(router.experts);
      }
      met += share * static_cast<double>(linear.out_features) * static_cast<double>(linear.in_features);
    }
  }
  json["parameters"] = values;
  json["parameters_per_token"] = static_cast<int64_t>(met);
  json["flops_per_token"] = static_cast<int64_t>(2 * met);
}

Json describe_plan(const Model& model, ThreadPool& pool, Log& log) {
  const tensor::InferenceScope inference;
  const QuantizePlan modules = make_plan(model, qqq_format(), {}, true);
  const SharedInputs shared(model, modules, {}, log);
  TokenRow row;
  for (int64_t id = 0; id < kPlanTokens; ++id) row.push_back(id % model.spec().vocab);
  const std::vector<TokenRow> rows(kPlanRows, row);
  CalibratorOptions calibrator{.threads = pool.threads()};
  calibrator.share = [&](const std::vector<Linear*>& pause) { return shared.sums(pause); };
  Json json = to_json(plan_budget(model, modules, rows, calibrator, {}, {}, pool));
  json["rows"] = kPlanRows;
  json["tokens"] = kPlanRows * kPlanTokens;
  return json;
}

Json describe(const std::string& folder, const std::filesystem::path& recipe, ThreadPool* planning,
              Log& log) {
  const auto checkpoint = std::make_shared<const Checkpoint>(folder);
  const auto stored = stored_format(checkpoint->config(), folder + "/config.json");
  ModelOptions options{.dtype = parse_dtype("auto"), .treat_as_tied = true, .quantized = {}};
  // Nothing is computed: what a quantized head would decode to is not asked for.
  if (stored && stored->of(kHeadName).format->holds(*checkpoint, kHeadName))
    options.quantized_head = [](const Checkpoint&, const Linear&) {
      return OutputHead{tensor::empty({0}, at::kFloat)};
    };
  const Model model(checkpoint, options);
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
  json["sharing"] = describe_sharing(model);
  if (!stored) count_work(model, json);
  json["modules"] = describe_modules(model, stored.has_value());
  if ((planning != nullptr || !recipe.empty()) && stored) {
    throw Error(ErrorKind::invalid_argument, folder, "is quantized already: there is no job to plan",
                "leave out --plan and --recipe");
  }
  if (!recipe.empty()) json["recipe"] = describe_recipe(model, recipe);
  if (planning != nullptr) {
    json["plan"] = describe_plan(model, *planning, log);
  }
  return json;
}

std::string braced(const Json& names) {
  std::string text = "{";
  for (const auto& name : names) text += (text.size() > 1 ? ", " : "") + name.get<std::string>();
  return text + "}";
}

std::string sharing_text(const Json& sharing) {
  std::string text;
  for (const auto& kind : sharing.at("kinds")) {
    text += str(kind.at("layers").size(), " layers like layer ", kind.at("layers")[0],
                ", calibrated in this order:\n");
    for (const auto& block : kind.at("blocks")) text += "  " + braced(block) + "\n";
    text += "  tagged to read one input:";
    for (const auto& group : kind.at("groups")) text += " " + braced(group.at("modules"));
    text += kind.at("groups").empty() ? " none\n" : "\n";
  }
  return text + (sharing.at("verified") ? str(sharing.at("followers"), " Hessians need not be taken\n")
                                        : "nothing will be shared: the model type is not verified\n");
}

std::string plan_text(const Json& plan) {
  std::string text =
      str("a job of ", plan.at("rows"), " rows, ", plan.at("tokens"), " tokens, holds about ",
          human_bytes(plan.at("peak_bytes")), " and takes about ", fixed(plan.at("seconds"), 0), " s:\n");
  for (const auto& [what, bytes] : plan.at("parts").items())
    text += str("  ", what, ": ", human_bytes(bytes), "\n");
  return text;
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
  if (json.contains("parameters")) {
    text += str(json.at("parameters"), " parameters, of which a token meets ",
                json.at("parameters_per_token"), ": ", json.at("flops_per_token"), " operations\n");
  }
  text += "linear layers that share an input:";
  for (const auto& group : json.at("shared_inputs")) text += " " + braced(group);
  text += "\n" + sharing_text(json.at("sharing"));
  if (json.contains("plan")) text += plan_text(json.at("plan"));
  if (json.contains("recipe")) return text + recipe_text(json.at("recipe"));
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
  Log log = common.log();
  const auto pool = flags.plan ? common.pool() : nullptr;
  Json json = flags.model.empty() ? Json::object() : describe(flags.model, flags.recipe, pool.get(), log);
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
  verb.add_flag("--plan", flags->plan,
                "Also what a job of 128 rows of 512 tokens would hold and how long it would take; runs one "
                "layer of each kind");
  verb.add_option("--recipe", flags->recipe,
                  "Also what quantize makes of every linear layer with this recipe");
  add_common(verb, common, [flags, common] { run(*flags, *common); });
}

}  // namespace gramian::cli
