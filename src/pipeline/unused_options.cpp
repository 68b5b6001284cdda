#include "pipeline/unused_options.h"

#include <algorithm>

#include "base/format.h"
#include "formats/json.h"

namespace gramian {
namespace {

// What reads rows and runs them through the model.
constexpr const char* kForward[] = {
    "--samples",          "--sequence-length", "--seed",    "--allow-fewer", "--batch",          "--dtype",
    "--sequential",       "--statistics",      "--experts", "--held-out",    "--held-out-limit", "--scratch",
    "--no-shared-inputs", "--activations"};
constexpr const char* kHessians[] = {"--hessian-input-dtype", "--staging-dtype", "--chunk-size",
                                     "--chunk-bytes"};
// What is decided by how many tokens reached a module.
constexpr const char* kCounts[] = {"--min-expert-tokens", "--fallback", "--fallback-smoother",
                                   "--fallback-threshold"};
// Of a GGUF file it also refuses other types for rows that blocks do not divide.
constexpr const char* kNoFallback[] = {"--no-fallback"};

class Unused {
 public:
  explicit Unused(const QuantizeJob& job) : given_(job.given) {
    for (const UnusedOption& option : job.unused_options) add(option.reason, option.name);
  }

  template <class Options>
  void note(const std::string& reason, const Options& options) {
    for (const char* name : options) {
      if (std::find(given_.begin(), given_.end(), name) != given_.end()) add(reason, name);
    }
  }

  std::vector<std::string> lines() const {
    constexpr size_t kNamesMax = 20;
    std::vector<std::string> lines;
    for (const auto& [reason, names] : by_reason_)
      lines.push_back(str(reason, " has no use for ", quote_names(names, kNamesMax)));
    return lines;
  }

 private:
  // By the first reason alone.
  void add(const std::string& reason, const std::string& name) {
    for (const auto& [other, names] : by_reason_) {
      if (std::find(names.begin(), names.end(), name) != names.end()) return;
    }
    const auto same = [&](const auto& one) { return one.first == reason; };
    auto place = std::find_if(by_reason_.begin(), by_reason_.end(), same);
    if (place == by_reason_.end()) place = by_reason_.insert(place, {reason, {}});
    place->second.push_back(name);
  }

  const std::vector<std::string>& given_;
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason_;
};

}  // namespace

std::vector<std::string> say_unused(const QuantizeJob& job, const Prepared& ready) {
  const Method& method = *ready.method;
  Unused unused(job);
  const std::string name = "method " + method.name;
  if (!method.calibrated()) {
    unused.note(name, kForward);
    unused.note(name, kCounts);
    if (!ready.plan.format->one_file()) unused.note(name, kNoFallback);
  } else if (ready.importance) {
    unused.note("a job that takes its importance from --imatrix", kForward);
  }
  if (method.statistic == Statistic::none || method.statistic == Statistic::importance)
    unused.note(name, kHessians);
  return unused.lines();
}

}  // namespace gramian
