#include "eval/report_page.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "support/files.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;

Json module(const std::string& name, const Json& error) {
  return {{"name", name}, {"out_features", 64}, {"in_features", 128}, {"relative_error", error}};
}

Json row(const std::string& variant, const Json& job) {
  return {{"variant", variant},          {"bytes", 1000},
          {"bits_per_weight", 4.25},     {"perplexity", 17.5},
          {"kl_mean", 0.0125},           {"kl_ci95", {0.012, 0.013}},
          {"top1_agreement", .9},        {"seconds", 2.5},
          {"peak_rss_bytes", 123456789}, {"job", job}};
}

Json job(const std::string& method) {
  return {
      {"method", method},
      {"group_size", 128},
      {"tokens", 4096},
      {"stages", {{"solve", 0.5}, {"pack", 0.25}}},
      {"modules",
       {module("model.layers.0.self_attn.q_proj", 0.0312), module("model.layers.1.mlp.up_proj", 0.0625)}}};
}

Json document() {
  Json original = row("original", nullptr);
  original["bytes"] = 4000;
  return {{"gramian", "0.1.0"},
          {"libtorch", "2.13.0"},
          {"model", "storyteller"},
          {"date", "2026-11-29T09:05:07Z"},
          {"cpu", "AMD EPYC"},
          {"cpu_level", "avx2"},
          {"threads", 2},
          {"held_out_rows", 86},
          {"held_out_tokens", 21930},
          {"rows", {original, row("qqq-g128", job("qqq"))}},
          {"commands", {"gramian demo --output 'my folder'"}},
          {"prompt", "Once upon a time"},
          {"stories", {{"original", "there was a cat."}, {"qqq-g128", "there was a dog."}}}};
}

std::string page(const Json& json) { return report_page(json, "doc.json"); }

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

void expect_refused(const Json& json, const std::string& says) {
  const Error error = error_of([&] { page(json); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
  EXPECT_NE(std::string(error.what()).find("doc.json"), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
}

TEST(ReportPage, ShowsTheDocument) {
  const std::string html = page(document());
  EXPECT_TRUE(html.starts_with(page_beginning()));
  for (const char* part :
       {"<title>storyteller: quantization report</title>", "29 November 2026, 09:05 UTC",
        "Quantized once, with 4,096 tokens of calibration text, and compared", "on 21,930 held-out tokens.",
        "4.00\u00d7 smaller", "QQQ, groups of 128", "<data value=\"0.0125\">0.0125</data>",
        "<data value=\"0.012\">0.0120</data>", "<data value=\"123456789\">", "there was a <mark>cat.</mark>",
        "there was a <mark>dog.</mark>",
        "title=\"model.layers.0.self_attn.q_proj: 64 out, 128 in; relative error 3.120\u202f%\"",
        "<data value=\"0.0312\">3.12</data>", "Largest: 6.25\u202f%, model.layers.1.mlp.up_proj of qqq-g128.",
        "<data value=\"1.75\">1.8</data>",
        "<span>--output</span> <span>&#39;my</span> <span>folder&#39;</span>"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(html.find("{{"), std::string::npos);
  EXPECT_EQ(html, page(document()));
}

TEST(ReportPage, EveryTextIsEscaped) {
  const std::string attack = "\"'></script></style><script>alert(1)</script>{{model}}&amp;";
  Json json = document();
  for (const char* key : {"gramian", "libtorch", "model", "cpu", "cpu_level", "prompt"})
    json[key] = attack + key;
  json["commands"] = {attack + "command"};
  json["stories"] = {{"original", attack + " original"}, {attack + "variant", attack + " story"}};
  json["rows"][0]["variant"] = attack + "reference";
  json["rows"][1]["variant"] = attack + "row";
  json["rows"][1]["job"]["method"] = attack + "method";
  json["rows"][1]["job"]["stages"][attack + "stage"] = 0.1;
  json["rows"][1]["job"]["modules"].push_back(module(attack + ".7." + attack, 0.1));
  const std::string html = page(json), plain = page(document());
  EXPECT_EQ(count(html, "<script>"), 1u);
  EXPECT_EQ(count(html, "</script>"), 1u);
  EXPECT_EQ(count(html, "</style>"), 1u);
  EXPECT_EQ(count(html, "alert(1)"), count(html, "&lt;script&gt;alert(1)&lt;/script&gt;{{model}}&amp;amp;"));
  EXPECT_GT(count(html, "alert(1)"), 20u);
  for (const char* key :
       {"libtorch", "cpu_level", "prompt", "command", "reference", "row", "method", "stage", "variant"})
    EXPECT_NE(html.find("&amp;amp;" + std::string(key)), std::string::npos) << key;
  // Script and style hold nothing of the document.
  for (const auto& [begin, end] : {std::pair("<style>", "</style>"), std::pair("<script>", "</script>")}) {
    const size_t from = html.find(begin), other = plain.find(begin);
    EXPECT_EQ(html.substr(from, html.find(end) - from), plain.substr(other, plain.find(end) - other));
  }
}

TEST(ReportPage, SectionsWithoutDataAreLeftOut) {
  EXPECT_EQ(count(page(document()), "<section id=\"story\""), 1u);
  Json json = document();
  json.erase("stories");
  EXPECT_EQ(count(page(json), "<section id=\"story\""), 0u);
  json["stories"] = nullptr;
  json.erase("prompt");
  EXPECT_EQ(count(page(json), "<section id=\"story\""), 0u);
  EXPECT_EQ(count(page(json), "<section id=\"errors\""), 1u);
  for (Json& entry : json["rows"][1]["job"]["modules"]) entry["relative_error"] = nullptr;
  EXPECT_EQ(count(page(json), "<section id=\"errors\""), 0u);
  json["rows"][1]["job"]["modules"] = Json::array();
  EXPECT_EQ(count(page(json), "<section id=\"errors\""), 0u);
  json["rows"].erase(1);
  json["commands"] = Json::array();
  const std::string html = page(json);
  EXPECT_EQ(count(html, "<dl class=\"keys\""), 0u);
  EXPECT_EQ(count(html, "<ul class=\"commands\""), 0u);
  EXPECT_EQ(count(html, "Seconds that each"), 0u);
  EXPECT_EQ(count(html, "<section id=\"cost\""), 1u);
}

TEST(ReportPage, Nulls) {
  Json json = document();
  json["rows"][1]["kl_ci95"] = {nullptr, nullptr};
  json["rows"][1]["job"]["modules"][0]["relative_error"] = nullptr;
  const std::string html = page(json);
  EXPECT_NE(html.find("no interval (one row)"), std::string::npos);
  EXPECT_EQ(count(html, "<td class=\"unmeasured\""), 1u);
  EXPECT_EQ(count(html, "not measured</span>"), 1u);
  EXPECT_EQ(count(html, "no such module</span>"), 2u);  // layer 0 has no up, layer 1 no q
  EXPECT_EQ(count(page(document()), "not measured"), 0u);
  // What JSON cannot hold is printed as null, and shown as such.
  json["rows"][1]["job"]["modules"][0]["relative_error"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(page(json), html);
  json["model"] = "caf\xe9";
  EXPECT_NE(page(json).find("caf\xEF\xBF\xBD"), std::string::npos);
}

TEST(ReportPage, ExtremeNumbers) {
  for (const double value : {0.0, 1e-300, 1e-7, 1.0, 1e6, 1e17}) {
    Json json = document();
    for (Json& entry : json["rows"]) {
      for (const char* key :
           {"bytes", "bits_per_weight", "perplexity", "kl_mean", "seconds", "peak_rss_bytes"})
        entry[key] = value;
      entry["kl_ci95"] = {-value, value};
    }
    json["rows"][1]["job"]["modules"][1]["relative_error"] = value;
    json["rows"][1]["job"]["stages"]["solve"] = value;
    const std::string html = page(json);
    for (const char* bad : {"nan", "inf"}) {
      EXPECT_EQ(html.find(std::string(bad) + "<"), std::string::npos) << value;
      EXPECT_EQ(html.find(std::string(bad) + "%"), std::string::npos) << value;
    }
  }
}

TEST(ReportPage, DocumentsThatDoNotFit) {
  const auto refused = [](const char* pointer, const Json& value, const std::string& says) {
    Json json = document();
    json[Json::json_pointer(pointer)] = value;
    expect_refused(json, says);
  };
  refused("/model", 3, "model: expected a text, found \"3\"");
  refused("/date", "2026-13-29T09:05:07Z", "date: expected a time like");
  refused("/date", "2026-11--9T09:05:07Z", "date: expected a time like");
  refused("/rows", Json::object(), "rows: expected a list, found object");
  refused("/rows", Json::array(), "rows: expected the original and its variants");
  refused("/rows/1/bytes", -1, "rows[1].bytes: expected a number from 0");
  refused("/rows/1/perplexity", "17", "rows[1].perplexity: expected a number, found \"17\"");
  refused("/rows/1/top1_agreement", 1.5, "rows[1].top1_agreement: expected a number from 0 to 1");
  refused("/rows/1/kl_ci95", {0.1}, "rows[1].kl_ci95: expected two numbers");
  refused("/rows/1/kl_ci95", {0.2, 0.1}, "rows[1].kl_ci95: expected the lower end first");
  refused("/rows/1/job", nullptr, "rows[1].job is missing");
  refused("/rows/0/job", job("qqq"), "rows[0].job: expected null");
  refused("/rows/1/job/stages", Json::array(), "rows[1].job.stages: expected an object");
  refused("/rows/1/job/modules/1/relative_error", "x",
          "rows[1].job.modules[1].relative_error: expected a number");
  refused("/rows/1/job/modules/1/name", "model.layers.0.self_attn.q_proj", "two modules");
  refused("/stories", {{"original", "x"}}, "stories: expected the original's story and one other");
  refused("/stories", {{"a", "x"}, {"b", "y"}}, "stories.original is missing");
  refused("/prompt", nullptr, "prompt is missing");
  refused("/stories/original", std::string(200'000, 'x'), "stories.original: 200000 bytes, at most 100000");
  refused("/rows", Json(std::vector<Json>(40, row("x", nullptr))), "rows: 40 entries, at most 32");
  expect_refused(Json::array(), "the document: expected an object, found array");
  expect_refused(nullptr, "the document: expected an object");
}

// Every value of the document in turn is removed, and replaced by each of many that do not belong there: a page or a refusal.
TEST(ReportPage, AnyDamageIsAPageOrARefusal) {
  const Json wrong = Json::array({nullptr,
                                  true,
                                  -1,
                                  0,
                                  1,
                                  1.5,
                                  1e308,
                                  -1e308,
                                  std::numeric_limits<int64_t>::min(),
                                  std::numeric_limits<uint64_t>::max(),
                                  "",
                                  "x",
                                  std::string(2000, 'y'),
                                  Json::array(),
                                  Json::object(),
                                  {nullptr},
                                  {1, 2, 3},
                                  {{"a", {{"b", 1}}}},
                                  {"original", "x"}});
  const Json whole = document();
  int pages = 0, refusals = 0;
  const auto attempt = [&](const Json& json) {
    try {
      EXPECT_TRUE(page(json).ends_with("</html>\n"));
      ++pages;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << error.what();
      ++refusals;
    }
  };
  const Json flat = whole.flatten();
  for (const auto& [pointer, ignored] : flat.items()) {
    for (Json::json_pointer place(pointer); !place.empty(); place.pop_back()) {
      for (const Json& value : wrong) {
        Json json = whole;
        json[place] = value;
        attempt(json);
      }
      Json json = whole;
      Json& parent = json[place.parent_pointer()];
      if (parent.is_object()) {
        parent.erase(place.back());
      } else {
        parent.erase(static_cast<size_t>(std::stoi(place.back())));
      }
      attempt(json);
    }
  }
  EXPECT_GT(pages, 100);
  EXPECT_GT(refusals, 1000);
}

}  // namespace
}  // namespace gramian
