#include "pipeline/recipe.h"

#include <gtest/gtest.h>

#include "formats/compressed_tensors.h"
#include "formats/gptq_format.h"
#include "formats/qqq_format.h"
#include "pipeline/plan.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;
using testing_support::TinyModel;

Recipe sound(const std::string& text, const std::string& where = "recipe.yaml") {
  Recipe recipe = parse_recipe(text, where);
  EXPECT_NO_THROW(recipe.problems.refuse());
  return recipe;
}

std::string refused(const std::string& text) {
  const Recipe recipe = parse_recipe(text, "recipe.yaml");
  return error_of([&] { recipe.problems.refuse(); }).what();
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Recipe, TakesGptqModelsNames) {
  const Recipe recipe = sound(R"(
method: gptq
format: gptq_v2
bits: 3
group_size: 64
sym: false
desc_act: true
static_groups: true
damp_percent: 0.02
damp_auto_increment: 0.005
mse: 2.0
true_sequential: false
pack_dtype: int32
fallback: {strategy: midpoint, threshold: 0.5%, smooth: {type: mad, k: 2.5, group_size_threshold: 64}}
hessian: {chunk_size: 512, chunk_bytes: null, staging_dtype: bfloat16, dedup_shared_inputs: false}
dynamic:
  '+:.*\.down_proj': {bits: 8, group_size: -1, damp_percent: 0.1}
  '-:.*\.1\..*o_proj': {}
  '.*\.v_proj': {mse: 0}
)");
  EXPECT_EQ(recipe.method, "gptq");
  EXPECT_EQ(recipe.format, "gptq_v2");
  const ModuleSettings base = patched({}, recipe.defaults);
  EXPECT_EQ(base.solve.grid.bits, 3);
  EXPECT_EQ(base.solve.grid.group_size, 64);
  EXPECT_FALSE(base.solve.grid.symmetric);
  EXPECT_EQ(base.solve.order, ColumnOrder::activation);
  EXPECT_TRUE(base.solve.static_groups);
  EXPECT_EQ(base.solve.damp_percent, 0.02);
  EXPECT_EQ(base.solve.damp_step, 0.005);
  EXPECT_EQ(base.solve.grid.mse, 2.0);
  EXPECT_EQ(base.fallback.strategy, FallbackStrategy::midpoint);
  EXPECT_EQ(base.fallback.threshold, (FallbackThreshold{0.5, true}));
  EXPECT_EQ(base.fallback.smoother.kind, Smoother::Kind::mad);
  EXPECT_EQ(base.fallback.smoother.a, 2.5);
  EXPECT_EQ(base.fallback.smoother.group_size_min, 64);
  EXPECT_EQ(recipe.sequential, Sequential::layer);
  EXPECT_EQ(recipe.chunk_size, 512);
  EXPECT_FALSE(recipe.chunk_bytes);
  EXPECT_EQ(recipe.staging, DType::bf16);
  EXPECT_EQ(recipe.shared_inputs, false);
  // Negative rules first, then as written; the first match is the only one.
  const auto rule = [&](const char* name) {
    const ModuleRule* found = rule_of(recipe.rules, name);
    return found == nullptr ? "" : found->written;
  };
  EXPECT_EQ(rule("model.layers.0.mlp.down_proj"), "+:.*\\.down_proj");
  EXPECT_EQ(rule("model.layers.1.self_attn.o_proj"), "-:.*\\.1\\..*o_proj");
  EXPECT_EQ(rule("model.layers.0.self_attn.o_proj"), "");
  const ModuleSettings down = patched(base, rule_of(recipe.rules, "model.layers.0.mlp.down_proj")->patch);
  EXPECT_EQ(down.solve.grid.bits, 8);
  EXPECT_EQ(down.solve.grid.group_size, -1);
  EXPECT_FALSE(down.solve.grid.symmetric);  // not said by the rule
}

TEST(Recipe, TheFirstMatchIsTheOnlyOne) {
  const Recipe recipe = sound(R"({"dynamic": {".*v_proj": {"bits": 3}, ".*0.*v_proj": {"bits": 2},
                                              "-:.*k_proj": {}, ".*k_proj": {"bits": 2}}})",
                              "recipe.json");
  EXPECT_EQ(rule_of(recipe.rules, "model.layers.0.self_attn.v_proj")->patch.bits, 3);
  EXPECT_TRUE(rule_of(recipe.rules, "model.layers.0.self_attn.k_proj")->exclude);
  // Anchored at the start, not at the end.
  const Recipe anchored = sound(R"({"dynamic": {"model.layers.1": {"bits": 3}}})", "recipe.json");
  EXPECT_NE(rule_of(anchored.rules, "model.layers.12.mlp.up_proj"), nullptr);
  EXPECT_EQ(rule_of(anchored.rules, "text.model.layers.1.mlp.up_proj"), nullptr);
}

TEST(Recipe, WrittenConfigurationsAreRecipes) {
  // What GPT-QModel writes, without the fields of its machine.
  const Recipe recipe =
      sound(R"({"bits": 4, "group_size": 32, "desc_act": false, "lm_head": true, "method": "gptq",
    "quant_method": "gptq", "format": "gptq", "checkpoint_format": "gptq", "pack_dtype": "int32",
    "meta": {"quantizer": ["gptqmodel:7.7.0"], "damp_percent": 0.05, "damp_auto_increment": 0.01, "static_groups": false,
      "true_sequential": true, "mse": 1.5, "gptaq": null, "foem": null, "act_group_aware": true,
      "fallback": {"strategy": "rtn", "threshold": "0.5%", "smooth": null}, "offload_to_disk": true,
      "hessian": {"chunk_size": null, "chunk_bytes": null, "staging_dtype": "float32", "dedup_shared_inputs": true}},
    "dynamic": {"-:.*k_proj": {}, "lm_head": {"bits": 8, "group_size": 32, "sym": true, "desc_act": false, "mse": 2.4}},
    "sym": true})",
            "quantize_config.json");
  EXPECT_TRUE(recipe.lm_head);
  EXPECT_EQ(recipe.defaults.mse, 1.5);
  EXPECT_EQ(patched({}, recipe.defaults).solve.order, ColumnOrder::group_aware);
  EXPECT_EQ(recipe.sequential, Sequential::subset);
  EXPECT_EQ(recipe.rules.size(), 2u);
  for (const LinearFormat* format : {&gptq_format(), &qqq_format()}) {
    const SolveOptions solve = format->settle({.grid = {.group_size = -1}}, DType::bf16);
    const Recipe ours =
        sound(format->config({.solve = solve, .method = "gptq", .skipped = {"a.b"}, .plain = {}}).dump(),
              "quantize_config.json");
    EXPECT_EQ(ours.defaults.group_size, -1);
    EXPECT_EQ(ours.format, format->name());
    EXPECT_TRUE(rule_of(ours.rules, "a.b")->exclude);
  }
}

TEST(Recipe, ModelOptimizersAlgorithms) {
  const Recipe plain = sound("bits: 8\nquantize:\n  algorithm: max\n");
  EXPECT_EQ(plain.method, "rtn");
  EXPECT_EQ(plain.defaults.mse, 0);
  const Recipe gptq =
      sound("quantize: {algorithm: {method: gptq, percdamp: 0.01, block_size: 128, debug: false}}");
  EXPECT_EQ(gptq.method, "gptq");
  EXPECT_EQ(gptq.defaults.damp_percent, 0.01);
  EXPECT_SAYS(refused("quantize: {algorithm: {method: local_hessian, block_size: 16}}"),
              "\"local_hessian\" is not built");
  EXPECT_EQ(sound("quantize: {algorithm: {method: gptq, perc_damp: 0.3}}").defaults.damp_percent, 0.3);
  EXPECT_SAYS(refused("quantize: {algorithm: {method: awq_lite}}"),
              "\"awq_lite\" is not built; max and gptq are");
  EXPECT_SAYS(refused("quantize: {algorithm: {method: max, start_multiplier: 2}}"),
              "\"start_multiplier\": no such field");
  EXPECT_SAYS(refused("quantize: {algorithm: max, quant_cfg: []}"), "quant_cfg: no entry says");
  EXPECT_SAYS(refused("quantize: {}"), "algorithm: is missing");
}

// The weights' part of Model Optimizer's configuration for NVFP4, as it writes it.
std::string nvfp4_recipe(const std::string& algorithm, const std::string& more = "") {
  return "quantize:\n  algorithm: " + algorithm +
         "\n  quant_cfg:\n"
         "    - {quantizer_name: '*', enable: false}\n"
         "    - {quantizer_name: '*weight_quantizer', cfg: {num_bits: e2m1, block_sizes: {-1: 16, type: "
         "static, "
         "scale_bits: e4m3}}}\n"
         "    - {quantizer_name: '*lm_head*', enable: false}\n" +
         more;
}

TEST(Recipe, ModelOptimizersQuantizers) {
  const Recipe plain = sound(nvfp4_recipe("max"));
  EXPECT_EQ(plain.method, "nvfp4_max");
  ASSERT_EQ(plain.rules.size(), 1);
  EXPECT_TRUE(plain.rules[0].may_be_unused);
  EXPECT_EQ(rule_of(plain.rules, "model.layers.0.mlp.up_proj"), nullptr);
  EXPECT_NE(rule_of(plain.rules, "lm_head"), nullptr);
  // Later entries win.
  const Recipe some =
      sound(nvfp4_recipe("mse",
                         "    - {quantizer_name: '*mlp*', enable: false}\n"
                         "    - {quantizer_name: '*down_proj.weight_quantizer', cfg: {num_bits: e2m1, "
                         "block_sizes: {-1: 16}}}\n"
                         "    - {quantizer_name: '*input_quantizer', enable: false}\n"));
  EXPECT_EQ(some.method, "nvfp4_mse");
  EXPECT_EQ(some.defaults.search->candidates, ScaleSearch::Candidates::all);
  EXPECT_NE(rule_of(some.rules, "model.layers.0.mlp.up_proj"), nullptr);
  EXPECT_EQ(rule_of(some.rules, "model.layers.0.mlp.down_proj"), nullptr);
  EXPECT_EQ(rule_of(some.rules, "model.layers.0.self_attn.q_proj"), nullptr);
  const Recipe local = sound(nvfp4_recipe(
      "{method: local_hessian, fp8_scale_sweep: false, block_size: 16, start_multiplier: 0.5, "
      "stop_multiplier: 2, "
      "step_size: 0.25, hessian_input_dtype: float32, distributed_sync: true, layerwise: {enable: false}}"));
  EXPECT_EQ(local.method, "local_hessian");
  EXPECT_EQ(local.sequential, Sequential::none);
  EXPECT_EQ(local.hessian_input, HessianInput::float32);
  EXPECT_EQ(local.defaults.search->multiples(), (std::vector<float>{0.5f, 0.75f, 1, 1.25f, 1.5f, 1.75f, 2}));
  const Recipe layerwise = sound(nvfp4_recipe(
      "{method: local_hessian, layerwise: {enable: true, get_qdq_activations_from_prev_layer: true}}"));
  EXPECT_EQ(layerwise.sequential, Sequential::layer);
  const Recipe integers = sound(
      "quantize: {algorithm: gptq, quant_cfg: [{quantizer_name: '*weight_quantizer', cfg: {num_bits: 4, "
      "block_sizes: "
      "{-1: 128}}}]}");
  EXPECT_EQ(integers.defaults.bits, 4);
  EXPECT_EQ(integers.defaults.group_size, 128);
  EXPECT_TRUE(integers.rules.empty());
  for (const auto& [algorithm, method] : {std::pair{"max", "fp8"}, {"gptq", "gptq_fp8"}}) {
    const Recipe floats = sound(str("quantize: {algorithm: ", algorithm,
                                    ", quant_cfg: [{quantizer_name: '*weight_quantizer', cfg: {num_bits: "
                                    "e4m3, axis: 0}}]}"));
    EXPECT_EQ(floats.method, method);
    EXPECT_FALSE(floats.defaults.bits);
  }
  EXPECT_SAYS(
      refused(nvfp4_recipe("max", "    - {quantizer_name: '*input_quantizer', cfg: {num_bits: e2m1}}\n")),
      "only weights are quantized");
  const Recipe compensated = sound(nvfp4_recipe("{method: gptq, perc_damp: 0.3}"));
  EXPECT_EQ(compensated.method, "gptq_nvfp4");
  EXPECT_EQ(compensated.defaults.damp_percent, 0.3);
  EXPECT_FALSE(compensated.defaults.bits);
  EXPECT_STREQ(sound("method: rtn\nformat: gguf\ntype: q5_k_m").defaults.type_mix->name, "q5_k_m");
  EXPECT_SAYS(refused("method: rtn\nformat: gguf\ntype: q4_k\ndynamic: {'.*down_proj': {type: q4_k_m}}"),
              "is a mixture, which is for all modules");
  EXPECT_SAYS(refused(nvfp4_recipe("{method: local_hessian, block_size: 32}")),
              "block_size: 32 is none of 16");
  EXPECT_SAYS(refused(nvfp4_recipe("{method: mse, step_size: 1.0e-5}")), "step_size: gives no multiples");
  EXPECT_SAYS(
      refused("quantize: {algorithm: max, quant_cfg: [{quantizer_name: '*weight_quantizer', cfg: {num_bits: "
              "e2m1, block_sizes: {-1: 32}}}]}"),
      "4-bit floats have blocks of 16");
}

TEST(Recipe, EverythingWrongIsSaidAtOnce) {
  const std::string all = refused(R"(
method: awq
bits: 5
group_sice: 128
sym: maybe
damp_percent: 1.5
mse: [2]
gptaq: {alpha: 0.25}
fallback: {strategy: best, threshold: 0.5percent, smoth: null}
hessian: {staging_dtype: float8, chunk_size: -1}
dynamic:
  '+:(': {bits: 4}
  '-:.*k_proj': {bits: 4}
  '.*q_proj': {bitz: 4}
  '.*v_proj': {format: qqq, group_size: 100}
  '.*o_proj': 4
)");
  for (const char* part :
       {"method: \"awq\" is none of qqq, gptq, rtn", "bits: 5 is none of 2, 3, 4, 8",
        "\"group_sice\": no such field; is group_size meant?", "sym: \"maybe\" is neither true nor false",
        "damp_percent: 1.5 is no number", "mse: [2] is no number", "gptaq: is not built",
        "fallback: strategy: ", "fallback: threshold: ",
        "fallback: \"smoth\": no such field; is smooth meant?",
        "staging_dtype: \"float8\" is none of float32, bfloat16", "chunk_size: -1 is no whole number",
        "dynamic: \"+:(\": ", "\"-:.*k_proj\": settings: of modules that stay",
        "\"bitz\": no such field; is bits meant?", "format: holds for the whole job",
        "group_size: 100 is none of -1, 16", "dynamic: \".*o_proj\": : expected an object"})
    EXPECT_SAYS(all, part);
  EXPECT_SAYS(all, "18 problems");
  EXPECT_SAYS(refused("[1, 2]"), "expected fields");
  EXPECT_SAYS(refused("desc_act: true\nbits: 4\nwbits: 8"), "wbits: 8, and bits is 4");
  EXPECT_SAYS(refused("zero_point: true\nsym: true"), "zero_point: contradicts sym");
  EXPECT_SAYS(refused("dynamic: {'" + std::string(1001, 'a') + "': {}}"), "1001 bytes");
}

TEST(Recipe, OrdersOfColumns) {
  const auto order = [](const std::string& text, ColumnOrder before = ColumnOrder::natural) {
    ModuleSettings settings;
    settings.solve.order = before;
    return patched(settings, sound(text).defaults).solve.order;
  };
  EXPECT_EQ(order("desc_act: true"), ColumnOrder::activation);
  EXPECT_EQ(order("desc_act: false", ColumnOrder::activation), ColumnOrder::natural);
  EXPECT_EQ(order("desc_act: false", ColumnOrder::group_aware), ColumnOrder::group_aware);
  EXPECT_EQ(order("act_group_aware: true"), ColumnOrder::group_aware);
  EXPECT_EQ(order("act_group_aware: false", ColumnOrder::group_aware), ColumnOrder::natural);
  EXPECT_EQ(order("order: activation"), ColumnOrder::activation);
  EXPECT_EQ(order("group_size: -1", ColumnOrder::group_aware), ColumnOrder::natural);
  error_of([&] { order("desc_act: true\nact_group_aware: true"); });
  error_of([&] { order("order: group-aware\ngroup_size: -1"); });
}

TEST(Recipe, Fallbacks) {
  EXPECT_TRUE(sound("fallback: null").defaults.fallback->refuse);
  EXPECT_EQ(sound("fallback: {strategy: rtn}").defaults.fallback->threshold, (FallbackThreshold{1, true}));
  EXPECT_EQ(sound("fallback: {threshold: 20}").defaults.fallback->threshold, (FallbackThreshold{20, false}));
  EXPECT_EQ(sound("fallback: {threshold: null}").defaults.fallback->threshold, (FallbackThreshold{0, false}));
  EXPECT_EQ(sound("fallback: {smooth: percentile_asym:1:98}").defaults.fallback->smoother.b, 98);
  EXPECT_EQ(sound("fallback: {smooth: {type: rowcol, axis: column}}").defaults.fallback->smoother.kind,
            Smoother::Kind::column);
  EXPECT_EQ(parse_fallback_threshold("2.5%").tokens(1000), 25);
  EXPECT_EQ(parse_fallback_threshold("7").tokens(1000), 7);
  for (const char* text : {"", "%", "-1", "101%", "nan", "1e99", "5 %"})
    EXPECT_EQ(error_of([&] { parse_fallback_threshold(text); }).kind(), ErrorKind::invalid_argument) << text;
}

// ---- rules on a model ------------------------------------------------------------------------------------------------

struct RuledModel : TinyModel {
  RuledModel()
      : TinyModel({.hidden = 128, .intermediate = 256, .heads = 4, .kv_heads = 2, .layers = 2, .vocab = 32}) {
  }

  std::string problems(const LinearFormat& format, const std::string& text, bool one_matrix = false) {
    const Recipe recipe = sound(text);
    Problems found;
    warnings.clear();
    ModuleSettings settings;
    settings.solve.grid.group_size = 128;
    check_settings("model", open().survey(), {}, format,
                   {.settings = patched(settings, recipe.defaults), .rules = recipe.rules}, one_matrix, found,
                   warnings);
    try {
      found.refuse();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  QuantizePlan plan(const LinearFormat& format, const std::string& text) {
    const Recipe recipe = sound(text);
    return make_plan(open(), format, {.settings = patched({}, recipe.defaults), .rules = recipe.rules});
  }
  std::vector<std::string> warnings;
};

TEST(Rules, ThatDoNothingOrCannotBeAreListedTogether) {
  RuledModel model;
  const std::string all = model.problems(qqq_format(), R"(
dynamic:
  '.*q_prj': {group_size: -1}
  '.*mlp': {group_size: 64}
  '.*mlp\.up_proj': {mse: 0}
  '-:layers': {}
  '.*[kqv]_proj': {bits: 8}
)");
  EXPECT_SAYS(all, "rule \".*q_prj\": matches no linear layer");
  EXPECT_SAYS(all, "rule \".*mlp\": --group-size: 64 is not what QQQ stores");
  EXPECT_SAYS(all, "rule \".*mlp\\.up_proj\": is never used: the 2 linear layer(s)");
  EXPECT_SAYS(all, "rule \"-:layers\": matches no linear layer");
  EXPECT_SAYS(all, "rule \".*[kqv]_proj\": --bits: 8 is not what QQQ stores");
  EXPECT_SAYS(all, "5 problems");
  EXPECT_EQ(model.problems(qqq_format(), "dynamic: {'.*mlp': {group_size: -1}}"), "");
  EXPECT_SAYS(model.problems(gptq_format(), "dynamic: {'.*down_proj': {fallback: midpoint}}"),
              "needs zero points");
  // QQQ stores no zero points that a fallback could need.
  EXPECT_SAYS(model.problems(qqq_format(), "fallback: midpoint"), "QQQ's modules are rounded plainly");
}

TEST(Rules, ThatSplitAMatrixAreRefusedForLoadersThatFuse) {
  RuledModel model;
  const std::string split = "dynamic: {'.*k_proj': {bits: 8}, '-:.*0.*up_proj': {}}";
  EXPECT_SAYS(model.problems(gptq_format(), split, true), "model.layers.1.self_attn.qkv_proj");
  EXPECT_SAYS(model.problems(gptq_format(), split, true), "model.layers.0.mlp.gate_up_proj");
  EXPECT_EQ(model.problems(gptq_format(), split), "");
  ASSERT_EQ(model.warnings.size(), 1u);
  EXPECT_SAYS(model.warnings[0], "parts of 3 matrices");
  // Settings of the solver alone split nothing, nor do rules of whole matrices.
  EXPECT_EQ(model.problems(gptq_format(), "dynamic: {'.*k_proj': {mse: 1, damp_percent: 0.1}}", true), "");
  EXPECT_EQ(model.problems(gptq_format(), "dynamic: {'.*[qkv]_proj': {bits: 8}, '.*down': {bits: 2}}", true),
            "");
  EXPECT_TRUE(model.warnings.empty());
}

TEST(Rules, PlansGiveEveryModuleItsSettings) {
  RuledModel model;
  const QuantizePlan plan = model.plan(gptq_format(), R"(
group_size: 64
dynamic:
  '-:.*\.0\..*o_proj': {}
  '.*down_proj': {bits: 8, group_size: 32, sym: false}
  '.*1.*_proj': {mse: 1}
)");
  EXPECT_EQ(plan.skipped(), std::vector<std::string>{"model.layers.0.self_attn.o_proj"});
  const PlannedModule& down = *plan.find("model.layers.1.mlp.down_proj");
  EXPECT_EQ(down.rule, ".*down_proj");
  EXPECT_EQ(down.solve.grid.bits, 8);
  EXPECT_EQ(plan.find("model.layers.1.mlp.up_proj")->solve.grid.mse, 1);
  EXPECT_EQ(plan.find("model.layers.0.mlp.up_proj")->solve.grid.mse, 2.4);
  const auto tensor = [&](const std::string& name) {
    return std::find_if(plan.tensors.begin(), plan.tensors.end(),
                        [&](const auto& t) { return t.name == name; })
        ->shape;
  };
  EXPECT_EQ(tensor("model.layers.1.mlp.down_proj.qweight"), (std::vector<int64_t>{256 / 4, 128}));
  EXPECT_EQ(tensor("model.layers.1.mlp.down_proj.qzeros"), (std::vector<int64_t>{8, 128 / 4}));
  EXPECT_EQ(tensor("model.layers.1.mlp.up_proj.scales"), (std::vector<int64_t>{2, 256}));
  EXPECT_EQ(tensor("model.layers.0.self_attn.o_proj.weight"), (std::vector<int64_t>{128, 128}));
}

// What is written reads back as what every module was planned with.
TEST(Rules, WrittenConfigurationsReadBack) {
  RuledModel model;
  const struct {
    const LinearFormat& format;
    const char* rules;
  } cases[] = {
      {gptq_format(),
       "bits: 4\ngroup_size: 64\ndynamic: {'.*down_proj': {bits: 8, sym: false}, '.*1.*[qkv]_proj': "
       "{group_size: -1}, '-:.*0.*o_proj': {}}"},
      {qqq_format(), "group_size: 128\ndynamic: {'.*down_proj': {group_size: -1}, '-:.*0.*o_proj': {}}"},
      {compressed_tensors_format(),
       "group_size: 64\ndynamic: {'.*down_proj': {bits: 8}, '.*1.*[qkv]_proj': "
       "{sym: false, group_size: 32}, '-:.*0.*o_proj': {}}"},
  };
  for (const auto& [format, text] : cases) {
    SCOPED_TRACE(format.name());
    const Model opened = model.open();
    const QuantizePlan plan = model.plan(format, text);
    QuantizationFields fields = plan.fields(opened.checkpoint());
    fields.method = "gptq";
    const Json config = {{"quantization_config", format.config(fields)}};
    const auto stored = stored_format(config, "config.json");
    ASSERT_TRUE(stored);
    EXPECT_FALSE(stored->head);
    std::vector<std::string> names;
    for (const auto& layer : plan.layers) {
      for (const PlannedModule& module : layer) {
        names.push_back(module.linear.name);
        if (!module.quantize) continue;
        const ModuleFormat& found = stored->of(module.linear.name);
        EXPECT_EQ(found.format, &format);
        EXPECT_EQ(found.grid.bits, module.solve.grid.bits) << module.linear.name;
        EXPECT_EQ(found.grid.group_size, module.solve.grid.group_size) << module.linear.name;
        EXPECT_EQ(found.grid.symmetric, module.solve.grid.symmetric) << module.linear.name;
      }
    }
    EXPECT_EQ(excluded_modules(config.at("quantization_config"), names, ""),
              std::set<std::string>{"model.layers.0.self_attn.o_proj"});
    if (&format == &gptq_format()) {
      EXPECT_EQ(config.at("quantization_config").at("dynamic"),
                Json::parse(R"({"-:^model\\.layers\\.0\\.self_attn\\.o_proj$": {},
                  "+:^model\\.layers\\.\\d+\\.mlp\\.down_proj$": {"bits": 8, "sym": false},
                  "+:^model\\.layers\\.1\\.self_attn\\.(k_proj|q_proj|v_proj|qkv_proj)$": {"group_size": -1}})"))
          << config.dump(1);
    }
  }
}

// ---- the head --------------------------------------------------------------------------------------------------------

const PlannedTensor* planned(const QuantizePlan& plan, const std::string& name) {
  const auto found =
      std::find_if(plan.tensors.begin(), plan.tensors.end(), [&](const auto& t) { return t.name == name; });
  return found == plan.tensors.end() ? nullptr : &*found;
}

TEST(Head, IsOneMoreLayerInEveryFormat) {
  RuledModel model;
  ModuleSettings settings;
  settings.solve.grid.group_size = 128;
  const struct {
    const LinearFormat& format;
    int64_t group_size;
    std::vector<std::string> parts;
  } cases[] = {{gptq_format(), 32, {"qweight", "qzeros", "scales", "g_idx"}},
               {qqq_format(), -1, {"weight", "weight_scale"}},
               {compressed_tensors_format(), 32, {"weight_packed", "weight_scale", "weight_shape"}}};
  for (const auto& [format, group_size, parts] : cases) {
    SCOPED_TRACE(format.name());
    if (&format == &compressed_tensors_format()) settings.solve.grid.activation_bits = 8;
    const Model opened = model.open();
    const QuantizePlan plan =
        make_plan(opened, format, {.settings = settings, .rules = {}, .head = HeadOptions{}});
    ASSERT_TRUE(plan.has_head);
    EXPECT_FALSE(plan.untied);
    EXPECT_EQ(plan.layers.size(), 3u);
    EXPECT_EQ(plan.decoder_layers(), 2u);
    const PlannedModule& head = *plan.find("lm_head");
    EXPECT_EQ(head.solve.grid.bits, 8);
    EXPECT_EQ(head.solve.grid.group_size, group_size);
    EXPECT_EQ(head.solve.grid.mse, 2.4);
    EXPECT_EQ(planned(plan, "lm_head.weight") != nullptr, &format == &qqq_format());
    for (const std::string& part : parts) EXPECT_NE(planned(plan, "lm_head." + part), nullptr) << part;
    QuantizationFields fields = plan.fields(opened.checkpoint());
    fields.method = "gptq";
    ASSERT_TRUE(fields.head);
    const Json config = format.config(fields);
    const auto stored = stored_format({{"quantization_config", config}}, "config.json");
    ASSERT_TRUE(stored);
    EXPECT_TRUE(stored->head);
    EXPECT_EQ(stored->of("lm_head").format, &format.head_format());
    EXPECT_EQ(stored->of("lm_head").grid.bits, 8);
    EXPECT_EQ(stored->of("lm_head").grid.group_size, group_size);
    EXPECT_EQ(stored->of("model.layers.0.mlp.up_proj").grid.group_size, 128);
  }
}

TEST(Head, ThatIsTheEmbeddingMustBeUntied) {
  RuledModel model;
  model.tensors.erase("lm_head.weight");
  model.config["tie_word_embeddings"] = true;
  const Model opened = model.open();
  HeadOptions head;
  const auto plan = [&] {
    return make_plan(opened, gptq_format(), {.settings = {}, .rules = {}, .head = head});
  };
  EXPECT_SAYS(std::string(error_of(plan).what()), "--untie");
  head.untie = true;
  const QuantizePlan untied = plan();
  EXPECT_TRUE(untied.untied);
  EXPECT_NE(planned(untied, "lm_head.qweight"), nullptr);
  EXPECT_NE(std::find(untied.copied.begin(), untied.copied.end(), "model.embed_tokens.weight"),
            untied.copied.end());
  EXPECT_TRUE(source_weight(opened.checkpoint(), untied.find("lm_head")->linear)
                  .equal(opened.checkpoint().tensor("model.embed_tokens.weight").to_tensor()));
}

TEST(Head, RulesAndOptions) {
  RuledModel model;
  const auto bits = [&](const std::string& rules, std::optional<int> option) {
    HeadOptions head;
    head.settings.bits = option;
    const Recipe recipe = sound("group_size: 64\n" + rules);
    const QuantizePlan plan =
        make_plan(model.open(), gptq_format(),
                  {.settings = patched({}, recipe.defaults), .rules = recipe.rules, .head = head});
    return plan.has_head ? plan.find("lm_head")->solve.grid.bits : 0;
  };
  EXPECT_EQ(bits("", std::nullopt), 8);
  EXPECT_EQ(bits("", 3), 3);
  EXPECT_EQ(bits("dynamic: {lm_head: {bits: 2}}", std::nullopt), 2);
  EXPECT_EQ(bits("dynamic: {lm_head: {bits: 2}}", 3), 3);
  EXPECT_EQ(bits("dynamic: {lm_head: {mse: 0}}", std::nullopt), 4);  // of all modules
  EXPECT_EQ(bits("dynamic: {'-:lm_head': {}}", 3), 0);
  EXPECT_TRUE(sound("dynamic: {'^lm_head$': {bits: 2}}").rules[0].names_head());
  EXPECT_FALSE(sound("dynamic: {'.*head': {bits: 2}}").rules[0].names_head());
  // A rule of the head is not one that no module has.
  EXPECT_EQ(model.problems(gptq_format(), "dynamic: {'-:lm_head': {}}"), "");
}

}  // namespace
}  // namespace gramian
