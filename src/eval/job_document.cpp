#include "eval/job_document.h"

#include <algorithm>
#include <sstream>

#include "eval/document_field.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kModulesMax = 100'000, kLinesMax = 2'000'000;

void read_stages(const Field& field, std::vector<std::pair<std::string, double>>& stages) {
  for (const auto& [stage, seconds] : field.members(12)) {
    const auto found = std::find_if(stages.begin(), stages.end(),
                                    [&, name = stage](const auto& other) { return other.first == name; });
    if (found == stages.end()) {
      stages.emplace_back(stage, seconds.number());
    } else {
      found->second += seconds.number();
    }
  }
}

std::optional<double> number_of(const Field& field, const char* key) {
  const auto found = field.find(key);
  return found ? std::optional(found->number()) : std::nullopt;
}
int64_t integer_of(const Field& field, const char* key, int64_t otherwise = 0, int64_t low = 0) {
  const auto found = field.find(key);
  return found ? found->integer(low) : otherwise;
}
std::string text_of(const Field& field, const char* key, size_t bytes_max = kNameMax) {
  const auto found = field.find(key);
  return found ? found->text(bytes_max) : "";
}
std::vector<std::string> texts_of(const Field& field, const char* key) {
  std::vector<std::string> texts;
  if (const auto found = field.find(key)) {
    for (const Field& entry : found->list(kModulesMax)) texts.push_back(entry.text());
  }
  return texts;
}

JobModule read_module(const Field& entry) {
  JobModule module;
  module.module.name = entry.at("name").text();
  module.module.out_features = entry.at("out_features").integer();
  module.module.in_features = entry.at("in_features").integer();
  module.module.relative_error = number_of(entry, "relative_error");
  module.fallback = text_of(entry, "fallback", kTextMax);
  if (entry.find("samples")) module.tokens = entry.at("samples").integer();
  module.diagonal_spread = number_of(entry, "diagonal_spread");
  module.dead_columns = integer_of(entry, "dead_columns");
  module.damp_attempts = integer_of(entry, "damp_attempts");
  module.zero_groups = integer_of(entry, "zero_groups");
  module.bits = integer_of(entry, "bits");
  module.group_size = integer_of(entry, "group_size", 0, -1);
  return module;
}

// An entry of the report's held_out.layers, and an event of telemetry alike.
void read_proof(const Field& entry, JobDocument& document) {
  const int64_t layer = entry.at("layer").integer();
  std::erase_if(document.proofs, [&](const JobProof& other) { return other.layer == layer; });
  if (document.proofs.size() >= kModulesMax) entry.fail(str("at most ", kModulesMax, " layers"));
  document.proofs.push_back({layer, number_of(entry, "error"), number_of(entry, "accumulated")});
  for (const Field& module : entry.at("flagged").list(kModulesMax)) {
    FlaggedModule flagged{module.at("module").text(), text_of(module, "reason", kTextMax),
                          module.at("error").number()};
    std::erase_if(document.flagged, [&](const FlaggedModule& other) { return other.name == flagged.name; });
    if (document.flagged.size() >= kModulesMax) entry.fail(str("at most ", kModulesMax, " modules"));
    document.flagged.push_back(std::move(flagged));
  }
}

// One line of telemetry after the other.
class Telemetered {
 public:
  void add(const Field& line) {
    const std::string event = line.at("event").text();
    time_ = line.at("ts").number();
    if (event == "start") return start(line);
    if (event == "resume") return resume(line);
    if (!begun_) return;
    if (event == "plan") plan(line);
    if (event == "pause") tokens_ = line.at("tokens").integer();
    if (event == "solve") solve(line);
    if (event == "held_out") read_proof(line, now_);
    if (event == "layer") layer(line);
    if (event == "end") end(line);
  }
  bool begun() const { return begun_; }
  JobDocument result() {
    if (!now_.finished) now_.seconds = earlier_ + std::max(time_ - start_, 0.0);
    return std::move(now_);
  }

 private:
  // Another job, unless a `resume` follows.
  void start(const Field& line) {
    before_ = std::move(now_);
    earlier_ = begun_ ? before_.seconds : 0;
    if (begun_ && !before_.finished) earlier_ += std::max(last_ - start_, 0.0);
    now_ = {};
    begun_ = true;
    start_ = last_ = time_;
    now_.gramian = line.at("gramian").text();
    now_.method = line.at("method").text();
    now_.name = line.at("output").text(kTextMax);
    now_.layers = line.at("layers").integer();
    now_.tokens = line.at("tokens").integer();
    now_.cpu_level = line.at("cpu_level").text();
  }
  void resume(const Field& line) {
    if (!begun_) return;
    const int64_t finished = line.at("finished_layers").integer();
    now_.resumed_at = finished;
    now_.finished_layers = finished;
    now_.stages = before_.stages;
    now_.memory = before_.memory;
    now_.fallbacks = before_.fallbacks;
    now_.proofs = before_.proofs;
    now_.flagged = before_.flagged;
    for (JobModule& module : before_.modules) now_.modules.push_back(std::move(module));
  }
  void plan(const Field& line) {
    now_.planned_bytes = number_of(line, "peak_bytes");
    now_.planned_seconds = number_of(line, "seconds");
  }
  void solve(const Field& line) {
    JobModule module;
    module.module.name = line.at("module").text();
    module.module.relative_error = number_of(line, "relative_error");
    module.fallback = text_of(line, "fallback", kTextMax);
    if (tokens_ > 0) module.tokens = tokens_;
    // A layer that was in work when the job stopped is made again.
    const auto same = [&](const JobModule& other) { return other.module.name == module.module.name; };
    std::erase_if(now_.modules, same);
    if (now_.modules.size() >= kModulesMax) line.fail(str("at most ", kModulesMax, " modules"));
    now_.modules.push_back(std::move(module));
  }
  void layer(const Field& line) {
    read_stages(line.at("stages"), now_.stages);
    now_.finished_layers = std::max(now_.finished_layers, line.at("layer").integer() + 1);
    now_.memory.push_back({time_, line.at("resident_bytes").number()});
    now_.peak_rss_bytes = std::max(now_.peak_rss_bytes, line.at("peak_rss_bytes").number());
    last_ = time_;
  }
  void end(const Field& line) {
    now_.finished = true;
    now_.seconds = line.at("seconds").number();
    now_.fallbacks = line.at("fallbacks").integer();
    now_.peak_rss_bytes = std::max(now_.peak_rss_bytes, line.at("peak_rss_bytes").number());
  }

  JobDocument now_, before_;
  bool begun_ = false;
  double time_ = 0, start_ = 0, last_ = 0, earlier_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace

JobDocument read_job_report(const Json& json, const std::string& where) {
  const Field top(json, "", where);
  JobDocument document;
  document.finished = true;
  document.gramian = top.at("gramian").text();
  document.method = top.at("method").text();
  document.format = text_of(top, "format");
  document.command = text_of(top, "command", 10'000);
  document.tokens = integer_of(top, "tokens");
  document.fallbacks = integer_of(top, "fallbacks");
  document.resumed_at = integer_of(top, "resumed_at_layer");
  document.weight_bytes = number_of(top, "weight_bytes");
  document.bits_per_weight = number_of(top, "bits_per_weight");
  document.bits_per_weight_total = number_of(top, "bits_per_weight_total");
  document.seconds = top.at("seconds").number();
  document.peak_rss_bytes = top.at("peak_rss_bytes").number();
  if (const auto plan = top.find("plan")) {
    document.planned_bytes = number_of(*plan, "peak_bytes");
    document.planned_seconds = number_of(*plan, "seconds");
  }
  read_stages(top.at("stages"), document.stages);
  for (const Field& entry : top.at("modules").list(kModulesMax))
    document.modules.push_back(read_module(entry));
  document.skipped = texts_of(top, "skipped");
  document.starved_experts = texts_of(top, "experts_below_minimum");
  if (const auto shared = top.find("shared_inputs")) {
    document.adopted = integer_of(*shared, "adopted");
    document.sums = integer_of(*shared, "sums");
  }
  if (const auto held_out = top.find("held_out")) {
    document.held_out_rows = held_out->at("rows").integer();
    document.held_out_tokens = held_out->at("tokens").integer();
    document.held_out_limit = held_out->at("limit").number();
    for (const Field& layer : held_out->at("layers").list(kModulesMax)) read_proof(layer, document);
  }
  return document;
}

JobEvaluation read_evaluation(const Json& json, const std::string& where) {
  const Field top(json, "", where);
  JobEvaluation evaluation;
  evaluation.perplexity = top.at("perplexity").number();
  evaluation.tokens = top.at("tokens").integer();
  if (const auto kl = top.find("kl_mean")) evaluation.kl = kl->number(-kNumberMax);
  if (const auto ends = top.find("kl_ci95")) {
    const std::vector<Field> two = ends->list(2);
    if (two.size() != 2) ends->fail("two numbers");
    if (!two[0].null() && !two[1].null())
      evaluation.kl_ci95 = std::pair(two[0].number(-kNumberMax), two[1].number(-kNumberMax));
  }
  for (const Field& part : top.at("by_position").list(64)) {
    const std::vector<Field> context = part.at("context").list(2);
    if (context.size() != 2) part.at("context").fail("two numbers");
    JobEvaluation::Part& read = evaluation.by_position.emplace_back();
    read.low = context[0].integer();
    read.high = context[1].integer();
    read.tokens = part.at("tokens").integer();
    read.negative_log_likelihood = part.at("negative_log_likelihood").number();
    if (const auto kl = part.find("kl_mean")) read.kl = kl->number(-kNumberMax);
  }
  return evaluation;
}

JobDocument read_job_telemetry(const std::string& text, const std::string& where) {
  std::istringstream lines(text);
  Telemetered telemetry;
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string place = str(where, ", line ", ++number);
    if (number > kLinesMax)
      throw Error(ErrorKind::corrupt_data, where, str("more than ", kLinesMax, " lines"));
    // Only a line that ends was written whole.
    if (lines.eof()) break;
    const Json json = parse_json(line, place);
    telemetry.add(Field(json, "", place));
  }
  if (!telemetry.begun())
    throw Error(ErrorKind::corrupt_data, where, "tells of no job",
                "name an output folder, its gramian-report.json, or a file of quantize --telemetry");
  return telemetry.result();
}

}  // namespace gramian
