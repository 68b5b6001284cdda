// check_settings() of plan.h.
#include <map>
#include <set>

#include "base/error.h"
#include "base/format.h"
#include "pipeline/plan.h"

namespace gramian {
namespace {

constexpr size_t kNamesMax = 8;

void refuse_fallback(const FallbackOptions& fallback, const SolveOptions& settled) {
  const bool plain =
      fallback.strategy == FallbackStrategy::rtn && fallback.smoother.kind == Smoother::Kind::none;
  if (plain) return;
  if (settled.grid.kind != GridKind::integer)
    throw Error(ErrorKind::invalid_argument, "--fallback",
                settled.grid.kind == GridKind::qqq   ? "QQQ's modules are rounded plainly"
                : settled.grid.kind == GridKind::fp8 ? "modules in FP8 are rounded plainly"
                : settled.grid.kind == GridKind::ggml
                    ? "blocks are then encoded without importance"
                    : "NVFP4's scales are searched by the error of the weights alone",
                "leave --fallback and --fallback-smoother out");
  if (fallback.strategy != FallbackStrategy::rtn && settled.grid.symmetric)
    throw Error(ErrorKind::invalid_argument, "--fallback",
                str(to_text(fallback.strategy), " needs zero points"), "use rtn, or --asym");
}

// The settings of a job or of one of its rules as the format has them. Throws for what it cannot hold.
SolveOptions settled(const LinearFormat& format, const ModuleSettings& settings) {
  SolveOptions solve = format.settle(settings.solve, DType::bf16);
  refuse_fallback(settings.fallback, solve);
  return solve;
}

class Check {
 public:
  Check(const LinearFormat& format, const PlanOptions& options, Problems& problems)
      : options_(options), format_(format), problems_(problems) {}

  void run(const std::string& where, std::vector<std::vector<Linear>> layers,
           const std::optional<Linear>& head, bool one_matrix, std::vector<std::string>& warnings) {
    bool sound = problems_.check([&] { usual_ = settled(format_, options_.settings); });
    for (const ModuleRule& rule : options_.rules) {
      if (rule.exclude || rule.names_head()) continue;  // settle_head() has that one
      sound &= in_rule(rule, [&] { own_[&rule] = settled(format_, patched(options_.settings, rule.patch)); });
    }
    const bool matched = problems_.check([&] { take_rules(layers); });
    if (head) sound &= problems_.check([&] { settle_head(*head, layers); });
    if (matched && !layers.empty()) check_use(layers);
    if (!sound || !matched) return;
    if (!options_.skip_unfit) problems_.check([&] { refuse_unfit(where, layers); });
    problems_.check([&] { refuse_other_types(where, layers); });
    check_matrices(layers, one_matrix, warnings);
  }

 private:
  template <class Work>
  bool in_rule(const ModuleRule& rule, const Work& work) {
    return problems_.check([&] {
      try {
        work();
      } catch (const Error& error) {
        throw Error(error.kind(), "rule " + quote_name(rule.written), error.what());
      }
    });
  }

  void take_rules(const std::vector<std::vector<Linear>>& layers) {
    for (const auto& layer : layers) {
      for (const Linear& linear : layer) rules_[linear.name] = rule_of(options_.rules, linear.name);
    }
    // A rule of the head is one that is used, also while the head stays as it is.
    if (!layers.empty()) rules_[kHeadName] = rule_of(options_.rules, kHeadName);
  }

  // The head becomes one more layer.
  void settle_head(const Linear& head, std::vector<std::vector<Linear>>& layers) {
    const ModuleRule* rule = rule_of(options_.rules, kHeadName);
    rules_[kHeadName] = rule;
    if (rule != nullptr && rule->exclude) return;
    if (head.name != kHeadName)
      throw Error(ErrorKind::unsupported, head.name, "a head of this name is not quantized yet",
                  "leave --lm-head-bits and lm_head out");
    if (!head.stored.tensor.empty() && !options_.head->untie)
      throw Error(ErrorKind::invalid_argument, kHeadName, "is the embedding: both are one tensor",
                  "pass --untie to store a quantized head apart from it");
    const ModuleSettings settings = gramian::settings_of(options_, format_, kHeadName, rule);
    head_ = format_.settle_head(settings.solve, DType::bf16);
    refuse_fallback(settings.fallback, head_);
    layers.push_back({head});
  }

  void check_use(const std::vector<std::vector<Linear>>& layers) {
    std::set<const ModuleRule*> used;
    for (const auto& [name, rule] : rules_) used.insert(rule);
    for (const ModuleRule& rule : options_.rules) {
      if (used.contains(&rule) || rule.may_be_unused) continue;
      size_t shadowed = 0;
      for (const auto& layer : layers) {
        for (const Linear& linear : layer) shadowed += rule.pattern.matches(linear.name) ? 1 : 0;
      }
      in_rule(rule, [&] {
        throw Error(ErrorKind::invalid_argument, "",
                    shadowed == 0 ? std::string("matches no linear layer")
                                  : str("is never used: the ", shadowed,
                                        " linear layer(s) that it matches have ", "an earlier rule"),
                    "`gramian inspect` lists their names; patterns match from the start of the full name");
      });
    }
  }

  // nullptr: left as it is.
  const SolveOptions* settings_of(const std::string& name) const {
    const ModuleRule* rule = rules_.at(name);
    if (name == kHeadName) return &head_;
    if (rule == nullptr) return &usual_;
    return rule->exclude ? nullptr : &own_.at(rule);
  }

  void refuse_unfit(const std::string& where, const std::vector<std::vector<Linear>>& layers) const {
    std::string all;
    int64_t count = 0;
    for (const auto& linears : layers) {
      for (const Linear& linear : linears) {
        const SolveOptions* solve = settings_of(linear.name);
        if (solve == nullptr) continue;
        const LinearFormat& format = linear.name == kHeadName ? format_.head_format() : format_;
        const std::string reason = format.unfit_reason(linear.out_features, linear.in_features, solve->grid);
        if (reason.empty()) continue;
        ++count;
        all += str("\n  ", linear.name, " [", linear.out_features, " x ", linear.in_features, "]: ", reason);
      }
    }
    if (count == 0) return;
    throw Error(ErrorKind::unsupported, where,
                str(count, " linear layer(s) do not fit the format ", format_.name(), ":", all),
                "\npass --skip-unfit to leave them unquantized, or choose another --group-size");
  }

  // Blocks that do not divide a row give way to another type, unless no fallback is allowed.
  void refuse_other_types(const std::string& where, const std::vector<std::vector<Linear>>& layers) const {
    std::vector<std::string> lines;
    for (const auto& linears : layers) {
      for (const Linear& linear : linears) {
        const SolveOptions* solve = settings_of(linear.name);
        if (solve == nullptr || solve->grid.codec == nullptr) continue;
        const ModuleSettings settings =
            gramian::settings_of(options_, format_, linear.name, rules_.at(linear.name));
        const Codec& asked = *solve->grid.codec;
        const Codec& other = *format_.fitted(solve->grid, linear.in_features).codec;
        if (!settings.fallback.refuse || &asked == &other) continue;
        lines.push_back(str(linear.name, " [", linear.out_features, " x ", linear.in_features,
                            "]: ", asked.name, "'s blocks of ", asked.block, " do not divide its rows, ",
                            other.name, "'s do"));
      }
    }
    if (lines.empty()) return;
    throw Error(ErrorKind::unsupported, where,
                str(lines.size(), " linear layer(s) would get another type:", below(lines)),
                "\nleave --no-fallback out to allow that, or choose another --type");
  }

  void check_matrices(const std::vector<std::vector<Linear>>& layers, bool refuse,
                      std::vector<std::string>& warnings) {
    // Of each matrix that a loader makes of several modules, the first one's settings.
    std::map<std::string, const SolveOptions*> first;
    std::vector<std::string> split;
    std::set<std::string> seen;
    for (const auto& layer : layers) {
      for (const Linear& linear : layer) {
        const std::string matrix = fused_name(linear.name);
        if (matrix.empty()) continue;
        const SolveOptions* const own = settings_of(linear.name);
        const SolveOptions* const other = first.try_emplace(matrix, own).first->second;
        const bool same = own == other || (own != nullptr && other != nullptr && same_stored(*own, *other));
        if (!same && seen.insert(matrix).second) split.push_back(matrix);
      }
    }
    if (split.empty()) return;
    const std::string what = str(
        "rules give parts of ", split.size(),
        " matrices different settings, which vLLM and SGLang load as one: ", quote_names(split, kNamesMax));
    if (!refuse) return warnings.push_back(what);
    problems_.add(
        Error(ErrorKind::invalid_argument, "--target vllm", what,
              "let each rule match all parts: (q_proj|k_proj|v_proj), (gate_proj|up_proj), all experts"));
  }

  const PlanOptions& options_;
  const LinearFormat& format_;
  Problems& problems_;
  SolveOptions usual_, head_;
  std::map<const ModuleRule*, SolveOptions> own_;   // of the rules that do not exclude
  std::map<std::string, const ModuleRule*> rules_;  // of each module
};

}  // namespace

void check_settings(const std::string& where, const std::vector<std::vector<Linear>>& layers,
                    const std::optional<Linear>& head, const LinearFormat& format, const PlanOptions& options,
                    bool one_matrix, Problems& problems, std::vector<std::string>& warnings) {
  Check(format, options, problems).run(where, layers, head, one_matrix, warnings);
}

}  // namespace gramian
