#include "eval/report_document.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/json.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNumberMax = 1e18;
constexpr size_t kNameMax = 1000, kTextMax = 100'000;

// A value of the document and the way to it, for messages.
class Field {
 public:
  Field(const Json& value, std::string path, const std::string& where)
      : value_(value), path_(std::move(path)), where_(where) {}

  // Nothing when the key is missing or null.
  std::optional<Field> find(const std::string& key) const {
    if (!value_.is_object()) fail("an object");
    const auto found = value_.find(key);
    if (found == value_.end() || found->is_null()) return std::nullopt;
    return Field(*found, (path_.empty() ? "" : path_ + ".") + key, where_);
  }
  Field at(const std::string& key) const {
    std::optional<Field> found = find(key);
    if (!found) refuse((path_.empty() ? "" : path_ + ".") + key + " is missing");
    return *found;
  }
  double number(double low = 0, double high = kNumberMax) const {
    if (!value_.is_number()) fail("a number");
    const double number = value_.get<double>();
    if (!(number >= low && number <= high)) fail(str("a number from ", low, " to ", high));
    return number;
  }
  bool null() const { return value_.is_null(); }
  int64_t integer(int64_t low = 0) const {
    if (!value_.is_number_integer()) fail("an integer");
    const double number = value_.get<double>();
    if (number < static_cast<double>(low) || number > 1e15) fail(str("an integer from ", low, " to 1e15"));
    return value_.get<int64_t>();
  }
  std::string text(size_t bytes_max = kNameMax) const {
    if (!value_.is_string()) fail("a text");
    const auto& text = value_.get_ref<const std::string&>();
    if (text.size() > bytes_max) refuse(str(path_, ": ", text.size(), " bytes, at most ", bytes_max));
    return text;
  }
  std::vector<Field> list(size_t count_max) const {
    if (!value_.is_array()) fail("a list");
    refuse_many(count_max);
    std::vector<Field> entries;
    for (const Json& entry : value_)
      entries.emplace_back(entry, str(path_, "[", entries.size(), "]"), where_);
    return entries;
  }
  // The members that are not null, in order.
  std::vector<std::pair<std::string, Field>> members(size_t count_max) const {
    if (!value_.is_object()) fail("an object");
    refuse_many(count_max);
    std::vector<std::pair<std::string, Field>> members;
    for (const auto& [key, value] : value_.items()) {
      if (key.size() > kNameMax) refuse(str(path_, ": a key of ", key.size(), " bytes"));
      if (!value.is_null()) members.emplace_back(key, Field(value, path_ + "." + key, where_));
    }
    return members;
  }
  [[noreturn]] void fail(const std::string& expected) const {
    std::string found = value_.is_structured() ? value_.type_name() : quote_name(value_.dump());
    if (value_.is_string()) found = quote_name(value_.get_ref<const std::string&>());
    refuse(str(path_.empty() ? "the document" : path_, ": expected ", expected, ", found ", found));
  }

 private:
  void refuse_many(size_t count_max) const {
    if (value_.size() > count_max) refuse(str(path_, ": ", value_.size(), " entries, at most ", count_max));
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::corrupt_data, where_, what,
                "a report is made from what gramian demo --json of this version prints");
  }

  const Json& value_;
  std::string path_;
  const std::string& where_;
};

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
