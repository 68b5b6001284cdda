#include "pipeline/job_identity.h"

#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/file.h"
#include "kernels/cpu_level.h"
#include "stats/gram.h"

namespace gramian {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
namespace {

constexpr size_t kNamesMax = 10;

// What the settings of sums come to for the model's activations: `compat` has its own rules for them.
std::string products_of(const QuantizeJob& job, const Subject& subject) {
  const Accumulation how = resolve_on_cpu(job.accumulation, subject.dtype);
  return str(how.bf16_products ? "bfloat16" : "float32", how.round_to_bf16 ? " of rounded rows" : "");
}

// The settings that rules give, not only their words: those depend on what stands above them.
Json rules_of(const QuantizeJob& job) {
  Json rules = Json::object();
  for (const ModuleRule& rule : job.rules) {
    const ModuleSettings settings = patched({job.solve, job.fallback}, rule.patch);
    const FallbackOptions& fallback = settings.fallback;
    rules[rule.written] = {
        describe(settings.solve),   settings.solve.grid.mse,     settings.solve.damp_percent,
        to_text(fallback.strategy), to_text(fallback.threshold), static_cast<int>(fallback.smoother.kind),
        fallback.smoother.a,        fallback.smoother.b,         fallback.refuse};
  }
  return rules;
}

Json head_of(const QuantizeJob& job) {
  if (!job.head) return nullptr;
  const ModuleSettings settings =
      settings_of(job.plan_options(), find_format(job.format), kHeadName, rule_of(job.rules, kHeadName));
  return describe(settings.solve);
}

Json options_of(const QuantizeJob& job, const Subject& subject) {
  const SolveOptions& solve = job.solve;
  return {
      {"method", job.method},
      {"forward", subject.foreign ? "hooks" : "own"},
      {"format", job.format},
      {"grid", to_text(solve.grid.kind)},
      {"search", describe(solve.search)},
      {"type", solve.grid.codec == nullptr ? Json(nullptr) : Json(solve.grid.codec->name)},
      {"type-mix", job.type_mix == nullptr ? Json(nullptr) : Json(job.type_mix->name)},
      {"encoder", solve.grid.anchored ? "anchored" : "search"},
      {"importance-weighted", solve.importance_weighted},
      {"imatrix", job.imatrix ? Json(digest(MappedFile(*job.imatrix).bytes())) : Json(nullptr)},
      {"bits", solve.grid.bits},
      {"symmetric", solve.grid.symmetric},
      {"activation-bits", solve.grid.activation_bits},
      {"group-size", solve.grid.group_size},
      {"mse", solve.grid.mse},
      {"damp-percent", solve.damp_percent},
      {"damp-step", solve.damp_step},
      {"static-groups", solve.static_groups},
      {"order", to_text(solve.order)},
      {"refine", solve.refine},
      {"refine-scales", solve.refine_scales},
      {"fallback", to_text(job.fallback.strategy)},
      {"fallback-smoother",
       {static_cast<int>(job.fallback.smoother.kind), job.fallback.smoother.a, job.fallback.smoother.b}},
      {"fallback-threshold", to_text(job.fallback.threshold)},
      {"no-fallback", job.fallback.refuse},
      {"lm-head", head_of(job)},
      {"rules", rules_of(job)},
      {"compat", job.compat_gptqmodel ? Json("gptqmodel") : Json(nullptr)},
      {"batch", job.batch},
      {"lanes", job.lanes},
      {"dtype", c10::toString(subject.dtype)},
      {"sequential", to_text(job.sequential)},
      {"hessian-input-dtype", to_text(job.accumulation.input)},
      {"staging-dtype", job.accumulation.staging ? Json(to_text(*job.accumulation.staging)) : Json(nullptr)},
      {"chunk-size", job.accumulation.chunk_size},
      {"chunk-bytes", job.accumulation.chunk_bytes},
      {"hessian-products", products_of(job, subject)},
      {"experts", job.all_experts ? "all" : "routed"},
      {"min-expert-tokens", job.min_expert_tokens},
      {"skip-unfit", job.skip_unfit},
      {"skip-scan", job.skip_scan},
      {"treat-as-tied", job.treat_as_tied},
      {"shard-bytes", job.shard_bytes_max}};
}

Json rows_of(const std::vector<TokenRow>& rows) {
  std::string all;
  size_t tokens = 0;
  for (const TokenRow& row : rows) {
    all += digest(std::as_bytes(std::span(row)));
    tokens += row.size();
  }
  return {{"rows", rows.size()}, {"tokens", tokens}, {"content", digest(all)}};
}

// Of each weight file, for a source that nobody read through; of what is in memory, where nothing else tells it apart, the values.
Json stamps_of(const Checkpoint& checkpoint) {
  Json stamps = Json::object();
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.file == nullptr) {
      stamps[name] = digest(tensor.bytes);
      continue;
    }
    const fs::path& path = tensor.file->path();
    const std::string file = path.filename().string();
    if (stamps.contains(file)) continue;
    stamps[file] = {tensor.file->bytes().size(), fs::last_write_time(path).time_since_epoch().count()};
  }
  return stamps;
}

}  // namespace

Json job_identity(const QuantizeJob& job, const Prepared& ready) {
  Json identity;
  identity["program"] = {{"version", GRAMIAN_VERSION}, {"cpu level", name(cpu_level())}};
  identity["options"] = options_of(job, ready.subject);
  identity["rows"] = rows_of(ready.rows.rows);
  if (!ready.held_out.empty()) identity["held-out rows"] = rows_of(ready.held_out);
  identity["config"] = {{"config.json", digest(ready.subject.checkpoint->config().dump())}};
  identity["weights"] = ready.digests.empty() ? stamps_of(*ready.subject.checkpoint) : Json(ready.digests);
  return identity;
}

Json statistics_identity(const Json& job) {
  Json identity = job;
  Json& options = identity.at("options");
  Json kept;
  for (const char* option : {"batch", "lanes", "dtype", "experts", "hessian-products", "chunk-size",
                             "chunk-bytes", "treat-as-tied", "skip-scan"})
    kept[option] = options.at(option);
  kept["lm-head"] = !options.at("lm-head").is_null();
  options = kept;
  return identity;
}

std::vector<std::string> identity_differences(const Json& was, const Json& is) {
  std::vector<std::string> found;
  for (const auto& [section, values] : is.items()) {
    const Json& before = was.contains(section) ? was.at(section) : Json();
    if (before == values) continue;
    std::vector<std::string> names;
    for (const auto& [key, value] : values.items()) {
      if (!before.is_object() || !before.contains(key)) {
        names.push_back(key + " is new");
      } else if (before.at(key) != value) {
        // Digests say nothing to a reader.
        const bool plain = section == "options" || section == "program";
        names.push_back(plain ? str(key, " was ", before.at(key).dump(), " and is ", value.dump())
                              : key + " changed");
      }
    }
    if (before.is_object()) {
      for (const auto& [key, value] : before.items()) {
        if (!values.contains(key)) names.push_back(key + " is gone");
      }
    }
    const size_t shown = std::min(names.size(), kNamesMax);
    std::string line = section + ": ";
    for (size_t i = 0; i < shown; ++i) line += (i == 0 ? "" : ", ") + names[i];
    if (shown < names.size()) line += str(" and ", names.size() - shown, " more");
    found.push_back(line);
  }
  return found;
}

}  // namespace gramian
