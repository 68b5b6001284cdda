#include "cli/solve_flags.h"

#include <algorithm>

#include "base/error.h"
#include "formats/gguf/type_mix.h"
#include "formats/gguf_format.h"
#include "pipeline/method.h"

namespace gramian::cli {
namespace {

ColumnOrder parse_order(const std::string& text) {
  for (const ColumnOrder order : {ColumnOrder::natural, ColumnOrder::activation, ColumnOrder::group_aware}) {
    if (text == to_text(order)) return order;
  }
  throw Error(ErrorKind::invalid_argument, "--order", str("'", text, "' is not known"),
              "natural, activation or group-aware");
}

ScaleSearch parse_multiples(const std::string& text) {
  ScaleSearch search{.candidates = ScaleSearch::Candidates::multiples};
  char rest = 0;
  const int read =
      std::sscanf(text.c_str(), "%lf:%lf:%lf%c", &search.start, &search.stop, &search.step, &rest);
  if (read == 3 && search.sound()) return search;
  throw Error(ErrorKind::invalid_argument, "--scale-multiples", str("'", text, "' is not START:STOP:STEP"),
              "for example 0.25:4:0.1");
}

std::string method_help() {
  std::string help = "Method:";
  for (const Method& method : all_methods()) help += " " + method.name + " = " + method.summary + ";";
  help.pop_back();
  return help;
}

std::string format_help() {
  std::string help = "How the result lies on disk (default: the method's):";
  for (const LinearFormat* format : all_formats())
    help += str(" ", format->name(), " = ", format->summary(), ";");
  help.pop_back();
  return help;
}

// Settings by the names under which they were given, as options and in a recipe.
class GivenSettings {
 public:
  GivenSettings(const SettingsPatch& flags, const SettingsPatch& recipe, std::vector<UnusedOption>& unused)
      : flags_(flags), recipe_(recipe), unused_(unused) {}

  template <class Member>
  bool has(Member member) const {
    return (flags_.*member).has_value() || (recipe_.*member).has_value();
  }
  template <class Member>
  void note(const std::string& reason, Member member, const std::string& option, const char* field) {
    if ((flags_.*member).has_value()) unused_.push_back({reason, option});
    if ((recipe_.*member).has_value()) unused_.push_back({reason, str(field, " of the recipe")});
  }
  // Those of a solver that compensates errors.
  void note_compensation(const std::string& reason) {
    note_order(reason);
    note_codes(reason);
  }
  // Those of codes that are chosen with their scales.
  void note_codes(const std::string& reason) {
    note(reason, &SettingsPatch::static_groups, "--static-groups", "static_groups");
    note(reason, &SettingsPatch::refine, "--refine", "refine");
    note(reason, &SettingsPatch::refine_scales, "--no-refine-scales", "refine_scales");
  }
  void note_order(const std::string& reason) {
    note(reason, &SettingsPatch::order, "--order", "order");
    note(reason, &SettingsPatch::desc_act, "--desc-act", "desc_act");
  }
  // One option of a pair.
  const char* symmetry() const { return flags_.symmetric == true ? "--sym" : "--asym"; }

 private:
  const SettingsPatch &flags_, &recipe_;
  std::vector<UnusedOption>& unused_;
};

// What was asked for that the method does not know.
void note_method_options(const Method& method, GivenSettings& given) {
  const std::string reason = "method " + method.name;
  if (!method.searches()) given.note(reason, &SettingsPatch::search, "--scale-multiples", "step_size");
  if (method.compensates() && is_float(method.defaults.grid.kind)) given.note_codes(reason);
  if (method.compensates()) return;
  given.note(reason, &SettingsPatch::damp_percent, "--damp-percent", "damp_percent");
  given.note(reason, &SettingsPatch::damp_step, "--damp-step", "damp_auto_increment");
  given.note_compensation(reason);
}

// A GGUF file's types have bits and groups of their own, and other formats have no types.
void note_grid_options(QuantizeJob& job, GivenSettings& given) {
  const auto foreign = [&](const std::string& where) {
    job.recipe_problems.add(Error(ErrorKind::invalid_argument, where,
                                  str("is for GGUF, the format is ", job.format), "add --format gguf"));
  };
  if (job.format != gguf_format().name()) {
    if (given.has(&SettingsPatch::type)) foreign("--type");
    if (given.has(&SettingsPatch::anchored)) foreign("--encoder");
    if (given.has(&SettingsPatch::importance_weighted)) foreign("--importance-weighted");
    for (const ModuleRule& rule : job.rules)
      if (rule.patch.type || rule.patch.anchored || rule.patch.importance_weighted)
        foreign("rule " + quote_name(rule.written));
    return;
  }
  for (const ModuleRule& rule : job.rules)
    if (rule.patch.bits || rule.patch.group_size || rule.patch.symmetric)
      job.recipe_problems.add(Error(ErrorKind::invalid_argument, "rule " + quote_name(rule.written),
                                    "sets bits, group size or sym, which a GGUF type has of its own",
                                    "give it a type"));
  if (find_method(job.method).defaults.grid.activation_bits == 8)
    job.recipe_problems.add(Error(ErrorKind::invalid_argument, "--method",
                                  str(job.method, " is for 8-bit activations, GGUF stores weights alone"),
                                  "use gptq, imatrix or rtn"));
  const std::string reason = "format gguf";
  given.note(reason, &SettingsPatch::bits, "--bits", "bits");
  given.note(reason, &SettingsPatch::activation_bits, "--activation-bits", "activation_bits");
  given.note(reason, &SettingsPatch::group_size, "--group-size", "group_size");
  given.note(reason, &SettingsPatch::symmetric, given.symmetry(), "sym");
  given.note(reason, &SettingsPatch::mse, "--mse", "mse");
  given.note_compensation(reason);
  if (!find_method(job.method).compensates())
    given.note("method " + job.method, &SettingsPatch::importance_weighted, "--importance-weighted",
               "importance_weighted");
  if (job.one_matrix) job.unused_options.push_back({reason, "--target"});
}

// llama.cpp says which type the head of a file has.
void check_head(QuantizeJob& job, const Method& method, const SolveFlags& flags, const Recipe& recipe) {
  const bool gguf = job.format == gguf_format().name();
  if (!job.head || (!gguf && !is_float(method.defaults.grid.kind))) return;
  const auto rule = std::find_if(job.rules.begin(), job.rules.end(),
                                 [](const ModuleRule& one) { return !one.exclude && one.names_head(); });
  const std::string name = flags.head_bits           ? "--lm-head-bits"
                           : recipe.lm_head          ? "lm_head of the recipe"
                           : rule == job.rules.end() ? "--untie"
                                                     : "rule " + quote_name(rule->written);
  job.recipe_problems.add(Error(ErrorKind::invalid_argument, name,
                                gguf ? "in a GGUF file the head gets the type that llama.cpp gives it"
                                     : "beside weights of floats the head stays as it is",
                                "leave it out"));
  job.head.reset();
}

// GPT-QModel's rules are for integer grids in its own formats.
void check_compat(QuantizeJob& job, const Method& method) {
  if (!job.compat_gptqmodel) return;
  const bool gguf = job.format == gguf_format().name();
  const GridKind kind = method.defaults.grid.kind;
  if (!gguf && !is_float(kind) && kind != GridKind::ggml) return;
  job.recipe_problems.add(Error(ErrorKind::invalid_argument, "--compat",
                                gguf ? std::string("GPT-QModel's rules are not for GGUF files")
                                     : str("GPT-QModel's rules are not for method ", method.name),
                                "leave it out, or use method qqq, gptq or rtn and another format"));
  job.compat_gptqmodel = false;
}

}  // namespace

void add_solve_flags(CLI::App& verb, SolveFlags& flags) {
  verb.add_option(
      "--recipe", flags.recipe,
      "Settings as a file, YAML or JSON, with rules for single modules (docs/recipes.md); other options go "
      "before its defaults, its rules before both");
  verb.add_option("--target", flags.target,
                  "vllm: refuse rules that split what it loads as one matrix, instead of a warning")
      ->check(CLI::IsMember({"vllm"}));
  verb.add_option("--method", flags.method, method_help() + " (default qqq)");
  verb.add_option("--format", flags.format, format_help());
  verb.add_option("--bits", flags.settings.bits,
                  "Bits of a weight: 4 (default), or 2, 3, 8 where the format has them")
      ->check(CLI::IsMember({2, 3, 4, 8}));
  verb.add_option(
          "--activation-bits", flags.settings.activation_bits,
          "8: the runtime rounds activations to int8 (qqq always; compressed-tensors can), 16: it does not")
      ->check(CLI::IsMember({8, 16}));
  auto* symmetric = verb.add_flag("--sym", flags.symmetric, "Grids without zero points (default)");
  verb.add_flag("--asym", flags.asymmetric, "Grids with zero points: gptq, gptq_v2, compressed-tensors W4A16")
      ->excludes(symmetric);
  verb.add_option(
          "--group-size", flags.settings.group_size,
          "Columns that share a scale: 128 (default), -1 for a whole row; qqq has these two, other formats "
          "16 to 1024")
      ->check(CLI::IsMember({-1, 16, 32, 64, 128, 256, 512, 1024}));
  verb.add_option("--mse", flags.settings.mse,
                  "Exponent of the scale search's error; 0 scales by the largest magnitude (default 2.4)")
      ->check(number_between(0.0, 16.0));
  verb.add_option("--damp-percent", flags.settings.damp_percent,
                  "Share of the Hessian's mean diagonal added to it (default 0.005; gptq and its kin: 0.05)")
      ->check(number_between(1e-12, 0.999999));
  verb.add_option("--damp-step", flags.settings.damp_step,
                  "Increase of --damp-percent while the Hessian does not factor; 0: none (default 0.001; "
                  "gptq and its kin: 0.01)")
      ->check(number_between(0.0, 1.0));
  auto* order = verb.add_option("--order", flags.order,
                                "Order in which columns are solved: natural (qqq), group-aware = by the "
                                "Hessian's diagonal inside groups and "
                                "among groups (gptq), activation = by it over all columns, which needs a "
                                "stored group of each column or "
                                "--static-groups");
  verb.add_flag("--desc-act", flags.desc_act, "Other tools' name for --order activation")->excludes(order);
  verb.add_flag("--static-groups", flags.static_groups,
                "Take all group scales before any error compensation");
  verb.add_option("--refine", flags.settings.refine,
                  "Sweeps of a last pass over codes and scales that only lowers the error against the "
                  "Hessian; 0: none (default 2; --compat gptqmodel: 0)")
      ->check(CLI::Range(0, 100));
  verb.add_flag_callback(
      "--no-refine-scales", [&flags] { flags.settings.refine_scales = false; },
      "Leave the scales in that pass as they are");
  verb.add_option(
      "--scale-multiples", flags.multiples,
      "NVFP4: instead of every scale try multiples of the largest magnitude's, START:STOP:STEP like "
      "0.25:4:0.1");
  verb.add_option("--type", flags.type,
                  "GGUF: the type of the blocks, like iq2_xxs, q4_k or q6_k, or one of llama.cpp's mixtures "
                  "q4_k_m, q4_k_s, q5_k_m, q5_k_s; rows "
                  "that a type does not divide get llama.cpp's other one");
  verb.add_option(
          "--encoder", flags.encoder,
          "GGUF: search = llama.cpp's (default), anchored = IQ2_XXS in one pass with a scale that is not "
          "searched")
      ->check(CLI::IsMember({"search", "anchored"}));
  verb.add_flag(
      "--importance-weighted", flags.importance_weighted,
      "GGUF with error compensation: weigh each block's errors with the roots of the Hessian's diagonal");
  verb.add_option("--lm-head-bits", flags.head_bits,
                  "Quantize lm_head too, with so many bits in groups of 32 (qqq: 8 bits, one scale per row)")
      ->check(CLI::IsMember({2, 3, 4, 8}));
  verb.add_flag("--untie", flags.untie,
                "Store a quantized head apart from the embedding that it is in the source");
  auto* strategy =
      verb.add_option("--fallback", flags.fallback,
                      "How modules that calibration did not reach are rounded: rtn (default), midpoint, "
                      "mean, median, stdclip");
  auto* smoother = verb.add_option(
      "--fallback-smoother", flags.smoother,
      "What tames their outliers first: none (default), percentile, percentile_asym, mad, outlier, softnorm, "
      "log, "
      "row, column, mse, with numbers behind colons (mad:2.5); groups below 128 are left alone");
  auto* threshold = verb.add_option(
      "--fallback-threshold", flags.threshold,
      "Calibration tokens below which a module counts as not reached: a number, or a share of all like 0.5% "
      "(default 1)");
  verb.add_flag("--no-fallback", flags.no_fallback,
                "End with an error, and no output, where one would be needed")
      ->excludes(strategy)
      ->excludes(smoother)
      ->excludes(threshold);
}

void settle_solve(const SolveFlags& flags, QuantizeJob& job) {
  settle_solve(flags, flags.recipe.empty() ? Recipe() : read_recipe(flags.recipe), job);
}

void settle_solve(const SolveFlags& flags, const Recipe& recipe, QuantizeJob& job) {
  job.recipe_problems = recipe.problems;
  job.rules = recipe.rules;
  job.one_matrix = flags.target == "vllm";
  const auto names_head = [](const ModuleRule& rule) { return !rule.exclude && rule.names_head(); };
  if (flags.head_bits || recipe.lm_head || std::any_of(job.rules.begin(), job.rules.end(), names_head)) {
    job.head.emplace();
    job.head->settings.bits = flags.head_bits;
    job.head->untie = flags.untie;
  } else if (flags.untie) {
    throw Error(ErrorKind::invalid_argument, "--untie", "no head is quantized",
                "add --lm-head-bits, or lm_head: true in a recipe");
  }
  const auto leaves_head = [](const ModuleRule& rule) {
    return rule.exclude && rule.pattern.matches(kHeadName);
  };
  if (flags.head_bits && std::any_of(job.rules.begin(), job.rules.end(), leaves_head)) {
    job.recipe_problems.add(Error(ErrorKind::invalid_argument, "--lm-head-bits",
                                  "a rule of the recipe leaves lm_head as it is", "leave one of them out"));
  }
  job.accumulation.input = recipe.hessian_input.value_or(HessianInput::automatic);
  job.accumulation.staging = recipe.staging;
  job.accumulation.chunk_size = recipe.chunk_size.value_or(0);
  job.accumulation.chunk_bytes = recipe.chunk_bytes.value_or(0);
  if (recipe.shared_inputs) job.shared_inputs &= *recipe.shared_inputs;
  job.method = flags.method.value_or(recipe.method.value_or("qqq"));
  const auto& methods = all_methods();
  const auto method =
      std::find_if(methods.begin(), methods.end(), [&](const Method& one) { return one.name == job.method; });
  if (method == methods.end()) return;
  if (method->single_pass) job.sequential = Sequential::none;
  if (recipe.sequential) job.sequential = *recipe.sequential;
  job.format = flags.format.value_or(recipe.format.value_or(method->format));
  check_compat(job, *method);
  check_head(job, *method, flags, recipe);
  SettingsPatch given = flags.settings;
  if (flags.asymmetric || flags.symmetric) given.symmetric = flags.symmetric;
  if (flags.static_groups) given.static_groups = true;
  if (flags.desc_act) given.desc_act = true;
  if (flags.order) given.order = parse_order(*flags.order);
  ModuleSettings settings{job.compat_gptqmodel ? method->compat : method->defaults, {}};
  job.recipe_problems.check([&] { settings = patched(settings, recipe.defaults); });
  if (flags.multiples) given.search = parse_multiples(*flags.multiples);
  job.type_mix = given.type ? given.type_mix : recipe.defaults.type_mix;
  if (flags.type) {
    // Some type, so that nothing says that one is missing.
    given.type = find_codec("IQ2_XXS");
    job.type_mix = gguf::find_type_mix(*flags.type);
    if (job.type_mix != nullptr) {
      given.type = find_codec(job.type_mix->type);
    } else {
      job.recipe_problems.check([&] { given.type = &parse_block_type(*flags.type); });
    }
  }
  if (flags.encoder) given.anchored = *flags.encoder == "anchored";
  if (flags.importance_weighted) given.importance_weighted = true;
  GivenSettings all_given(given, recipe.defaults, job.unused_options);
  note_method_options(*method, all_given);
  note_grid_options(job, all_given);
  settings = patched(settings, given);
  if (!method->compensates() || is_float(method->defaults.grid.kind)) settings.solve.refine = 0;
  job.solve = settings.solve;
  job.fallback = settings.fallback;
  if (flags.fallback) job.fallback.strategy = parse_fallback_strategy(*flags.fallback);
  if (flags.smoother) job.fallback.smoother = parse_smoother(*flags.smoother);
  if (flags.threshold) job.fallback.threshold = parse_fallback_threshold(*flags.threshold);
  if (flags.fallback || flags.smoother || flags.threshold) job.fallback.refuse = false;
  if (flags.no_fallback) job.fallback.refuse = true;
}

}  // namespace gramian::cli
