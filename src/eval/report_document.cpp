#include "eval/report_document.h"

#include "eval/document_field.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

std::string date_of(const Field& field) {
  const std::string text = field.text();
  const std::string form = "dddd-dd-ddTdd:dd:ddZ";
  bool fits = text.size() == form.size();
  for (size_t i = 0; fits && i < form.size(); ++i)
    fits = form[i] == 'd' ? text[i] >= '0' && text[i] <= '9' : text[i] == form[i];
  const int month = fits ? std::stoi(text.substr(5, 2)) : 0;
  if (month < 1 || month > 12) field.fail("a time like 2026-11-29T19:31:05Z");
  return text;
}

ReportJob read_job(const Field& field) {
  ReportJob job;
  job.method = field.at("method").text();
  job.group_size = field.at("group_size").integer(-1);
  job.tokens = field.at("tokens").integer();
  for (const auto& [stage, seconds] : field.at("stages").members(12))
    job.stages.emplace_back(stage, seconds.number());
  for (const Field& entry : field.at("modules").list(100'000)) {
    ReportModule& module = job.modules.emplace_back();
    module.name = entry.at("name").text();
    module.out_features = entry.at("out_features").integer();
    module.in_features = entry.at("in_features").integer();
    if (const auto error = entry.find("relative_error")) module.relative_error = error->number();
  }
  return job;
}

// Null twice where one row of text gave no interval; it may reach below 0.
std::optional<std::pair<double, double>> read_interval(const Field& field) {
  const std::vector<Field> ends = field.list(2);
  if (ends.size() == 2 && ends[0].null() && ends[1].null()) return std::nullopt;
  if (ends.size() != 2) field.fail("two numbers");
  const double low = ends[0].number(-kNumberMax), high = ends[1].number(-kNumberMax);
  if (low > high) field.fail("the lower end first");
  return std::pair(low, high);
}

ReportRow read_row(const Field& field, bool original) {
  ReportRow row;
  row.variant = field.at("variant").text();
  row.bytes = field.at("bytes").number();
  row.bits_per_weight = field.at("bits_per_weight").number();
  row.perplexity = field.at("perplexity").number();
  row.kl_mean = field.at("kl_mean").number(-kNumberMax);
  row.kl_ci95 = read_interval(field.at("kl_ci95"));
  row.top1_agreement = field.at("top1_agreement").number(0, 1);
  row.seconds = field.at("seconds").number();
  row.peak_rss_bytes = field.at("peak_rss_bytes").number();
  if (!original) row.job = read_job(field.at("job"));
  if (original && field.find("job")) field.at("job").fail("null, as the first row is the original");
  return row;
}

ReportStory read_story(const Field& stories, const std::string& prompt) {
  ReportStory story{
      .prompt = prompt, .original = stories.at("original").text(kTextMax), .variant = {}, .quantized = {}};
  const auto members = stories.members(2);
  if (members.size() != 2) stories.fail("the original's story and one other");
  const auto& [variant, text] = members[members[0].first == "original" ? 1 : 0];
  story.variant = variant;
  story.quantized = text.text(kTextMax);
  return story;
}

}  // namespace

ReportDocument read_report_document(const Json& json, const std::string& where) {
  const Field top(json, "", where);
  ReportDocument document;
  document.gramian = top.at("gramian").text();
  document.libtorch = top.at("libtorch").text();
  document.model = top.at("model").text();
  document.date = date_of(top.at("date"));
  document.cpu = top.at("cpu").text();
  document.cpu_level = top.at("cpu_level").text();
  document.threads = top.at("threads").integer(1);
  document.held_out_rows = top.at("held_out_rows").integer(1);
  document.held_out_tokens = top.at("held_out_tokens").integer(1);
  const std::vector<Field> rows = top.at("rows").list(32);
  if (rows.empty()) top.at("rows").fail("the original and its variants");
  for (const Field& row : rows) document.rows.push_back(read_row(row, document.rows.empty()));
  for (const Field& command : top.at("commands").list(200)) document.commands.push_back(command.text(10'000));
  if (const auto stories = top.find("stories"))
    document.story = read_story(*stories, top.at("prompt").text(kTextMax));
  return document;
}

}  // namespace gramian
