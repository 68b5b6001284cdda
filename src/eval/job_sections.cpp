#include "eval/job_sections.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format.h"
#include "eval/page_parts.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFlaggedMax = 50;
constexpr int64_t kExpertsMax = 10'000;

std::string exact_percent(double share) {
  return percent(share, std::clamp(decimals_of(100 * share, 3), 0, 6));
}

// A line over the layers, on a scale that ends with `top`.
std::string line_of(const std::vector<JobProof>& proofs, std::optional<double> JobProof::* share,
                    double top) {
  std::string points;
  for (size_t i = 0; i < proofs.size(); ++i) {
    if (!(proofs[i].*share)) continue;
    const double x = 1000 * static_cast<double>(i) / static_cast<double>(proofs.size() - 1);
    points +=
        str(points.empty() ? "" : " ", fixed(x, 1), ",", fixed(158 - 154 * *(proofs[i].*share) / top, 1));
  }
  return points;
}

Json chart_view(const std::vector<JobProof>& proofs, double top) {
  if (proofs.size() < 2 || top <= 0) return nullptr;
  return {{"own", line_of(proofs, &JobProof::own, top)},
          {"since_first", line_of(proofs, &JobProof::since_first, top)},
          {"top", exact_percent(top)},
          {"described", str("Error of ", proofs.size(), " layers, at most ", exact_percent(top))},
          {"begin", str("layer ", proofs.front().layer)},
          {"end", str("layer ", proofs.back().layer)}};
}

// "model.layers.3.mlp" and 7 of "model.layers.3.mlp.experts.7.up_proj".
std::optional<std::pair<std::string, int64_t>> expert_of(const std::string& name) {
  const std::string word = ".experts.";
  const size_t at = name.find(word);
  if (at == std::string::npos) return std::nullopt;
  const char* begin = name.data() + at + word.size();
  const char* end = name.data() + name.size();
  int64_t expert = 0;
  const auto [rest, error] = std::from_chars(begin, end, expert);
  if (error != std::errc() || rest == end || *rest != '.' || expert < 0 || expert >= kExpertsMax)
    return std::nullopt;
  return std::pair(name.substr(0, at), expert);
}

Json mixture_view(const std::string& name, const std::vector<int64_t>& tokens) {
  std::vector<int64_t> sorted = tokens;
  std::sort(sorted.begin(), sorted.end());
  const auto most = static_cast<double>(std::max<int64_t>(sorted.back(), 1));
  const double width = 1000 / static_cast<double>(tokens.size());
  std::string bars;
  for (size_t expert = 0; expert < tokens.size(); ++expert) {
    const double height = 40 * static_cast<double>(tokens[expert]) / most;
    bars += str("M", fixed(width * static_cast<double>(expert), 2), " 40v-", fixed(height, 2), "h",
                fixed(0.8 * width, 2), "v", fixed(height, 2), "z");
  }
  const auto count = [](int64_t value) { return figure(static_cast<double>(value), grouped(value)); };
  return {{"name", name},
          {"bars", bars},
          {"described", str(tokens.size(), " experts, ", sorted.front(), " to ", sorted.back(), " tokens")},
          {"least", count(sorted.front())},
          {"median", count(sorted[sorted.size() / 2])},
          {"most", count(sorted.back())}};
}

}  // namespace

Json proof_view(const JobDocument& document) {
  std::vector<JobProof> proofs = document.proofs;
  if (proofs.empty()) return nullptr;
  std::sort(proofs.begin(), proofs.end(), [](const auto& a, const auto& b) { return a.layer < b.layer; });
  double top = 0;
  const JobProof* worst = nullptr;
  for (const JobProof& proof : proofs) {
    top = std::max({top, proof.own.value_or(0), proof.since_first.value_or(0)});
    if (proof.own && (worst == nullptr || *proof.own > *worst->own)) worst = &proof;
  }
  std::string sentence = "What the original and the quantized layers make of rows that no statistic saw";
  if (document.held_out_rows > 0)
    sentence += str(" (", counted(document.held_out_rows, "row"), ", ",
                    counted(document.held_out_tokens, "token"), ")");
  sentence += ", while the job ran.";
  if (worst != nullptr)
    sentence +=
        str(" The layer that loses most by itself is ", worst->layer, " (", exact_percent(*worst->own), ").");
  if (proofs.back().since_first)
    sentence += str(" Behind layer ", proofs.back().layer, " hidden states are ",
                    exact_percent(*proofs.back().since_first), " off.");
  Json modules = Json::array();
  std::vector<const FlaggedModule*> flagged;
  for (const FlaggedModule& module : document.flagged) flagged.push_back(&module);
  std::stable_sort(flagged.begin(), flagged.end(),
                   [](const auto* a, const auto* b) { return a->error > b->error; });
  const size_t all = flagged.size();
  flagged.resize(std::min(all, kFlaggedMax));
  for (const FlaggedModule* module : flagged)
    modules.push_back(
        {{"name", module->name},
         {"error", figure(module->error, exact_percent(module->error))},
         {"reason", module->reason.empty() ? "nothing unusual about its input" : module->reason}});
  std::string caption =
      str(counted(static_cast<int64_t>(all), "linear layer"), " flagged",
          document.held_out_limit > 0 ? " above " + exact_percent(document.held_out_limit) : "");
  if (all > kFlaggedMax) caption += str("; the ", kFlaggedMax, " largest");
  return {
      {"sentence", sentence},
      {"chart", chart_view(proofs, top)},
      {"flagged", modules.empty() ? Json(nullptr) : Json{{"caption", caption + "."}, {"modules", modules}}}};
}

Json coverage_view(const JobDocument& document) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<int64_t>> mixtures;
  for (const JobModule& module : document.modules) {
    const auto expert = expert_of(module.module.name);
    if (!expert) continue;
    const auto [mixture, fresh] = mixtures.try_emplace(expert->first);
    if (fresh) names.push_back(expert->first);
    std::vector<int64_t>& tokens = mixture->second;
    const auto index = static_cast<size_t>(expert->second);
    if (tokens.size() <= index) tokens.resize(index + 1, 0);
    tokens[index] = std::max(tokens[index], module.tokens.value_or(0));
  }
  if (names.empty()) return nullptr;
  Json views = Json::array();
  int64_t unseen = 0;
  for (const std::string& name : names) {
    views.push_back(mixture_view(name, mixtures.at(name)));
    unseen += std::count(mixtures.at(name).begin(), mixtures.at(name).end(), 0);
  }
  return {{"sentence", unseen == 0 ? "Every quantized expert was sent calibration tokens."
                                   : counted(unseen, "expert") + " without a calibration token."},
          {"mixtures", std::move(views)}};
}

Json positions_view(const std::optional<JobEvaluation>& evaluation) {
  if (!evaluation || evaluation->by_position.empty()) return nullptr;
  const auto& parts = evaluation->by_position;
  const bool divergence =
      std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.kl.has_value(); });
  const auto score = [&](const JobEvaluation::Part& part) {
    return divergence ? *part.kl : part.negative_log_likelihood;
  };
  double most = 0;
  for (const auto& part : parts) most = std::max(most, score(part));
  Json views = Json::array();
  for (const auto& part : parts) {
    const double mean = score(part);
    views.push_back({{"context", part.low == part.high ? grouped(part.low)
                                                       : grouped(part.low) + "\u2013" + grouped(part.high)},
                     {"width", part_of(mean, most)},
                     {"mean", figure(mean, fixed(mean, std::clamp(decimals_of(mean, 3), 0, 6)))},
                     {"tokens", figure(static_cast<double>(part.tokens), grouped(part.tokens))}});
  }
  return {{"score", divergence ? "KL, nats" : "\u2212log p, nats"},
          {"caption",
           divergence ? "Mean KL divergence from the original, by how many tokens stand before a position."
                      : "Mean negative log-likelihood, by how many tokens stand before a position."},
          {"parts", std::move(views)}};
}

}  // namespace gramian
