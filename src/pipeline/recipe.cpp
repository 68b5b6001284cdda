#include "pipeline/recipe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/format.h"
#include "formats/gguf/type_mix.h"
#include "formats/gguf_format.h"
#include "formats/json.h"
#include "formats/linear_format.h"
#include "formats/yaml.h"
#include "pipeline/method.h"
#include "pipeline/recipe_fields.h"
#include "pipeline/recipe_quant_cfg.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr uintmax_t kBytesMax = uintmax_t{1} << 20;
constexpr size_t kPatternBytesMax = 1000;
constexpr size_t kRulesMax = 10'000;

// GPT-QModel's smoothers by their fields, as parse_smoother() wants them.
std::string smoother_text(RecipeFields& fields, const Json& smooth) {
  const std::string type =
      smooth.value("type", Json()).is_string() ? smooth.at("type").get<std::string>() : "";
  const auto with = [&](const std::string& name, std::initializer_list<const char*> numbers) {
    std::string text = name;
    fields.pass({"type"});
    for (const char* key : numbers) {
      const Json* value = fields.take(key);
      if (value == nullptr) break;
      text += ":" + value->dump();
    }
    return text;
  };
  if (type == "percentile" || type == "outlier")
    return with(type, {type == "outlier" ? "pct" : "percentile"});
  if (type == "percentile_asym") return with(type, {"low", "high"});
  if (type == "mad" || type == "softnorm") return with(type, {"k"});
  if (type == "log") return with(type, {"percentile", "mu"});
  if (type == "mse") return with(type, {"steps", "maxshrink"});
  if (type == "rowcol") {
    const Json* axis = fields.take("axis");
    return with(axis != nullptr && *axis == "column" ? "column" : "row", {});
  }
  fields.pass({"type"});
  return type;
}

Smoother read_smoother(const Json& smooth, const std::string& where, const std::string& place,
                       Problems& problems) {
  if (smooth.is_null()) return {};
  if (smooth.is_string()) return parse_smoother(smooth.get<std::string>());
  if (!smooth.is_object()) throw Error(ErrorKind::invalid_argument, "", "expected text or an object");
  RecipeFields fields(smooth, where, place, problems);
  Smoother smoother = parse_smoother(smoother_text(fields, smooth));
  if (const auto size = fields.whole_or_null("group_size_threshold", 1 << 20))
    smoother.group_size_min = *size;
  fields.finish();
  return smoother;
}

FallbackThreshold read_threshold(const Json* threshold) {
  // GPT-QModel's meanings of what is no number.
  if (threshold == nullptr) return {1, true};
  if (threshold->is_null() || *threshold == Json(false)) return {0, false};
  if (*threshold == Json(true)) return {};
  return parse_fallback_threshold(threshold->is_string() ? threshold->get<std::string>() : threshold->dump());
}

std::optional<FallbackOptions> read_fallback(RecipeFields& fields, const std::string& where,
                                             const std::string& place, Problems& problems) {
  const Json* value = fields.take("fallback");
  if (value == nullptr) return std::nullopt;
  FallbackOptions fallback;
  if (value->is_null()) {
    fallback.refuse = true;
  } else if (value->is_string()) {
    fields.check("fallback", [&] { fallback.strategy = parse_fallback_strategy(value->get<std::string>()); });
  } else if (!value->is_object()) {
    fields.problem("fallback", "expected null, a name or an object");
  } else {
    RecipeFields inner(*value, where, place + "fallback: ", problems);
    if (const Json* strategy = inner.take("strategy"); strategy != nullptr) {
      inner.check("strategy", [&] {
        fallback.strategy =
            parse_fallback_strategy(strategy->is_string() ? strategy->get<std::string>() : strategy->dump());
      });
    }
    const Json* threshold = inner.take("threshold");
    inner.check("threshold", [&] { fallback.threshold = read_threshold(threshold); });
    if (const Json* smooth = inner.take("smooth"); smooth != nullptr) {
      inner.check("smooth", [&] {
        fallback.smoother = read_smoother(*smooth, where, place + "fallback: smooth: ", problems);
      });
    }
    inner.finish();
  }
  return fallback;
}

// The fields that hold for the whole job and for single modules alike.
SettingsPatch read_settings(RecipeFields& fields, const std::string& where, const std::string& place,
                            Problems& problems) {
  SettingsPatch patch;
  if (const auto bits = fields.whole({"bits", "wbits", "w_bit"}, {2, 3, 4, 8}))
    patch.bits = static_cast<int>(*bits);
  patch.group_size = fields.whole({"group_size", "q_group_size"}, {-1, 16, 32, 64, 128, 256, 512, 1024});
  patch.symmetric = fields.boolean({"sym"});
  if (const auto zeros = fields.boolean({"zero_point"})) {
    if (patch.symmetric == zeros) fields.problem("zero_point", "contradicts sym");
    patch.symmetric = !*zeros;
  }
  patch.desc_act = fields.boolean({"desc_act"});
  patch.act_group_aware = fields.boolean({"act_group_aware"});
  if (const auto order = fields.text({"order"}, {"natural", "activation", "group-aware"})) {
    for (const ColumnOrder one : {ColumnOrder::natural, ColumnOrder::activation, ColumnOrder::group_aware}) {
      if (*order == to_text(one)) patch.order = one;
    }
  }
  const auto says = [&](const std::optional<bool>& flag, ColumnOrder order) {
    return flag && *flag != (patch.order == order);
  };
  if (patch.order && (says(patch.desc_act, ColumnOrder::activation) ||
                      says(patch.act_group_aware, ColumnOrder::group_aware)))
    fields.problem("order", "contradicts desc_act or act_group_aware");
  patch.static_groups = fields.boolean({"static_groups"});
  patch.mse = fields.number("mse", 0, 16);
  if (const auto sweeps = fields.whole_or_null("refine", 100)) patch.refine = static_cast<int>(*sweeps);
  patch.refine_scales = fields.boolean({"refine_scales"});
  patch.damp_percent = fields.number("damp_percent", 1e-12, 0.999999);
  std::vector<std::string> types = block_type_names();
  for (const gguf::TypeMix& mix : gguf::type_mixes()) types.emplace_back(mix.name);
  if (const auto type = fields.text({"type"}, types)) {
    const gguf::TypeMix* mix = gguf::find_type_mix(*type);
    patch.type = mix == nullptr ? &parse_block_type(*type) : find_codec(mix->type);
    patch.type_mix = mix;
  } else if (fields.take("type") != nullptr) {
    patch.type =
        find_codec("IQ2_XXS");  // refused by now; some type, so that nothing says that one is missing
  }
  if (const auto encoder = fields.text({"encoder"}, {"search", "anchored"}))
    patch.anchored = *encoder == "anchored";
  patch.importance_weighted = fields.boolean({"importance_weighted"});
  patch.fallback = read_fallback(fields, where, place, problems);
  fields.refuse({"gptaq", "foem", "adapter", "rotation"}, "is not built");
  return patch;
}

class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  Recipe read(const Json& root) {
    if (!root.is_object()) {
      problems_.add(Error(ErrorKind::corrupt_data, where_, "expected fields, like 'bits: 4'"));
    } else {
      RecipeFields fields(root, where_, "", problems_);
      read_all(fields, root);
      fields.finish();
    }
    recipe_.problems = std::move(problems_);
    return std::move(recipe_);
  }

 private:
  static std::vector<std::string> method_names() {
    std::vector<std::string> names;
    for (const Method& method : all_methods()) names.push_back(method.name);
    return names;
  }

  void read_all(RecipeFields& fields, const Json& root) {
    recipe_.method = fields.text({"method", "quant_method"}, method_names());
    std::vector<std::string> formats;
    for (const LinearFormat* format : all_formats()) formats.emplace_back(format->name());
    recipe_.format = fields.text({"format", "checkpoint_format"}, formats);
    recipe_.defaults = read_settings(fields, where_, "", problems_);
    recipe_.defaults.damp_step = fields.number("damp_auto_increment", 0, 1);
    if (const auto bits = fields.whole({"activation_bits"}, {8, 16}))
      recipe_.defaults.activation_bits = static_cast<int>(*bits);
    recipe_.lm_head = fields.boolean({"lm_head"}).value_or(false);
    if (const auto ordered = fields.boolean({"true_sequential"}))
      recipe_.sequential = *ordered ? Sequential::subset : Sequential::layer;
    fields.text({"pack_dtype"}, {"int32"});
    read_hessian(fields);
    read_dynamic(fields);
    read_algorithm(fields);
    if (const Json* meta = fields.take("meta"); meta != nullptr) read_meta(*meta, root);
  }

  void read_hessian(RecipeFields& fields) {
    const Json* value = fields.take("hessian");
    if (value == nullptr || value->is_null()) return;
    if (!value->is_object()) return fields.problem("hessian", "expected an object");
    RecipeFields hessian(*value, where_, "hessian: ", problems_);
    recipe_.chunk_size = hessian.whole_or_null("chunk_size", int64_t{1} << 40);
    recipe_.chunk_bytes = hessian.whole_or_null("chunk_bytes", int64_t{1} << 60);
    // float32 is what its writers say when they mean nothing in particular.
    if (hessian.text({"staging_dtype"}, {"float32", "bfloat16"}) == "bfloat16") recipe_.staging = DType::bf16;
    recipe_.shared_inputs = hessian.boolean({"dedup_shared_inputs"});
    hessian.finish();
  }

  void read_dynamic(RecipeFields& fields) {
    const Json* value = fields.take("dynamic");
    if (value == nullptr || value->is_null()) return;
    if (!value->is_object()) return fields.problem("dynamic", "expected an object of patterns");
    if (value->size() > kRulesMax)
      return fields.problem("dynamic", str(value->size(), " rules, at most ", kRulesMax, " are read"));
    for (const auto& [key, overrides] : value->items()) read_rule(key, overrides);
  }

  void read_rule(const std::string& key, const Json& overrides) {
    const std::string place = "dynamic: " + quote_name(key) + ": ";
    const bool exclude = key.starts_with("-:");
    const std::string pattern = exclude || key.starts_with("+:") ? key.substr(2) : key;
    RecipeFields fields(overrides, where_, place, problems_);
    if (!overrides.is_object() && !overrides.is_null()) return fields.problem("", "expected an object");
    SettingsPatch patch;
    if (overrides.is_object()) {
      fields.refuse({"method", "quant_method", "format", "checkpoint_format", "pack_dtype", "lm_head",
                     "dynamic", "hessian", "damp_auto_increment", "activation_bits", "true_sequential"},
                    "holds for the whole job, not for some modules");
      patch = read_settings(fields, where_, place, problems_);
      if (patch.type_mix != nullptr)
        fields.problem("type", "is a mixture, which is for all modules", "give the rule a single type");
      fields.finish();
      if (exclude && !overrides.empty()) fields.problem("settings", "of modules that stay as they are");
    }
    if (pattern.size() > kPatternBytesMax)
      return fields.problem("pattern",
                            str("has ", pattern.size(), " bytes, at most ", kPatternBytesMax, " are read"));
    problems_.check([&] {
      recipe_.rules.push_back(
          {key, ModulePattern(pattern, where_ + ": " + place.substr(0, place.size() - 2)), exclude, patch});
    });
  }

  // Model Optimizer's `quantize: algorithm:` for what both have.
  void read_algorithm(RecipeFields& fields) {
    const Json* quantize = fields.take("quantize");
    if (quantize == nullptr) return;
    if (!quantize->is_object()) return fields.problem("quantize", "expected an object");
    RecipeFields inner(*quantize, where_, "quantize: ", problems_);
    const Json* list = inner.take("quant_cfg");
    QuantConfig config;
    if (list != nullptr) config = read_quant_cfg(*list, where_, "quantize: ", problems_);
    const Json* algorithm = inner.take("algorithm");
    inner.finish();
    if (algorithm == nullptr) return inner.problem("algorithm", "is missing");
    const Json block = algorithm->is_string() ? Json{{"method", *algorithm}} : *algorithm;
    if (!block.is_object()) return inner.problem("algorithm", "expected a name or an object");
    RecipeFields settings(block, where_, "quantize: algorithm: ", problems_);
    const Json* method = settings.take("method");
    if (method == nullptr || !method->is_string()) return settings.problem("method", "is missing");
    if (recipe_.method) settings.problem("method", "stands twice: here and in " + *recipe_.method);
    const auto name = method->get<std::string>();
    const bool nvfp4 = config.grid && config.grid->kind == GridKind::nvfp4;
    const bool fp8 = config.grid && config.grid->kind == GridKind::fp8;
    if (config.grid && !nvfp4 && !fp8) take_grid(*config.grid);
    if (!config.excluded.empty())
      recipe_.rules.push_back(
          {"-:" + config.excluded, ModulePattern(config.excluded, where_), true, {}, true});
    if (name == "max") {
      recipe_.method = nvfp4 ? "nvfp4_max" : fp8 ? "fp8" : "rtn";
      if (!nvfp4 && !fp8 && !recipe_.defaults.mse) recipe_.defaults.mse = 0;
    } else if (name == "gptq") {
      recipe_.method = nvfp4 ? "gptq_nvfp4" : fp8 ? "gptq_fp8" : "gptq";
      recipe_.defaults.damp_percent = settings.number("perc_damp", 1e-12, 0.999999);
      if (const auto damp = settings.number("percdamp", 1e-12, 0.999999))
        recipe_.defaults.damp_percent = damp;
      settings.whole({"block_size"}, {128});
    } else if (nvfp4 && (name == "mse" || name == "local_hessian")) {
      recipe_.method = name == "mse" ? "nvfp4_mse" : name;
      read_search(settings);
      if (name == "local_hessian") read_local_hessian(settings);
    } else {
      return settings.problem("method", quote_name(name) + " is not built",
                              "max and gptq are, and for weights of e2m1 mse and local_hessian");
    }
    // Where sums of several processes meet, and what is printed.
    settings.pass({"debug", "distributed_sync"});
    settings.finish();
  }

  // Integers by quant_cfg, where nothing else is said.
  void take_grid(const GridOptions& grid) {
    if (!recipe_.defaults.bits) recipe_.defaults.bits = grid.bits;
    if (!recipe_.defaults.group_size) recipe_.defaults.group_size = grid.group_size;
  }

  void read_search(RecipeFields& settings) {
    const bool all = settings.boolean({"fp8_scale_sweep"}).value_or(true);
    ScaleSearch search{.candidates = all ? ScaleSearch::Candidates::all : ScaleSearch::Candidates::multiples};
    search.start = settings.number("start_multiplier", 1e-6, 1e6).value_or(search.start);
    search.stop = settings.number("stop_multiplier", 1e-6, 1e6).value_or(search.stop);
    search.step = settings.number("step_size", 1e-6, 1e6).value_or(search.step);
    if (!search.sound())
      return settings.problem("step_size", "gives no multiples, or more than there are scales");
    recipe_.defaults.search = search;
  }

  void read_local_hessian(RecipeFields& settings) {
    settings.whole({"block_size"}, {16});
    if (const auto type = settings.text({"hessian_input_dtype"}, {"float32", "bfloat16"}))
      recipe_.hessian_input = parse_hessian_input(*type);
    // Statistics of the original model, but where layers are to see the quantized ones before them.
    recipe_.sequential = Sequential::none;
    const Json* layerwise = settings.take("layerwise");
    if (layerwise == nullptr || layerwise->is_null()) return;
    if (!layerwise->is_object()) return settings.problem("layerwise", "expected an object");
    RecipeFields fields(*layerwise, where_, "quantize: algorithm: layerwise: ", problems_);
    const bool on = fields.boolean({"enable"}).value_or(false);
    if (fields.boolean({"get_qdq_activations_from_prev_layer"}).value_or(false) && on)
      recipe_.sequential = Sequential::layer;
    fields.pass({"checkpoint_dir", "save_every", "calib_mutates_weights"});
    fields.finish();
  }

  // Where written configurations keep what loaders need not know. The rest of it changes nothing here.
  void read_meta(const Json& meta, const Json& root) {
    if (!meta.is_object()) return;
    Json known = Json::object();
    for (const char* key : {"damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "mse",
                            "act_group_aware", "fallback", "hessian", "gptaq", "foem", "rotation"}) {
      if (meta.contains(key) && !root.contains(key)) known[key] = meta.at(key);
    }
    RecipeFields fields(known, where_, "meta: ", problems_);
    const SettingsPatch patch = read_settings(fields, where_, "meta: ", problems_);
    SettingsPatch& defaults = recipe_.defaults;
    if (patch.damp_percent) defaults.damp_percent = patch.damp_percent;
    if (patch.static_groups) defaults.static_groups = patch.static_groups;
    if (patch.mse) defaults.mse = patch.mse;
    // Its writers say so whatever the order is.
    if (patch.act_group_aware && !(defaults.desc_act == true))
      defaults.act_group_aware = patch.act_group_aware;
    if (patch.fallback) defaults.fallback = patch.fallback;
    if (const auto step = fields.number("damp_auto_increment", 0, 1)) defaults.damp_step = step;
    if (const auto ordered = fields.boolean({"true_sequential"}))
      recipe_.sequential = *ordered ? Sequential::subset : Sequential::layer;
    read_hessian(fields);
  }

  std::string where_;
  Problems problems_;
  Recipe recipe_;
};

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& where) {
  const bool json = where.ends_with(".json");
  return Reader(where).read(json ? parse_json(text, where) : parse_yaml(text, where));
}

Recipe read_recipe(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.bytes().size() > kBytesMax) {
    throw Error(ErrorKind::corrupt_data, path.string(),
                str("has ", file.bytes().size(), " bytes, at most ", kBytesMax, " are read"),
                "expected a recipe of some lines");
  }
  const std::span<const std::byte> bytes = file.bytes();
  return parse_recipe({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace gramian
