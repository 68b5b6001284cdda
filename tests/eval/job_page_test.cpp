#include "eval/job_page.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "support/files.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
template <class Work>
std::string message_of(const Work& work) {
  return testing_support::error_of(work).what();
}

Json module(const std::string& name, const Json& error) {
  return {{"name", name},     {"out_features", 64},     {"in_features", 128}, {"relative_error", error},
          {"samples", 4096},  {"diagonal_spread", 1.5}, {"dead_columns", 0},  {"damp_attempts", 1},
          {"zero_groups", 0}, {"fallback", nullptr},    {"bits", 4},          {"group_size", 128}};
}

Json report() {
  return {{"gramian", "0.1.0"},
          {"method", "qqq"},
          {"format", "qqq"},
          {"command", "gramian quantize model -o 'my out'"},
          {"tokens", 4096},
          {"fallbacks", 0},
          {"resumed_at_layer", nullptr},
          {"weight_bytes", 1.5e6},
          {"bits_per_weight", 4.25},
          {"bits_per_weight_total", 5.5},
          {"seconds", 12.5},
          {"peak_rss_bytes", 3e8},
          {"plan", {{"peak_bytes", 4e8}, {"seconds", 10.0}}},
          {"stages", {{"solve", 3.5}, {"factor", 1.25}}},
          {"skipped", Json::array()},
          {"experts_below_minimum", Json::array()},
          {"shared_inputs", {{"adopted", 6}, {"sums", 8}}},
          {"modules",
           {module("model.layers.0.self_attn.q_proj", 0.03), module("model.layers.1.mlp.up_proj", 0.06)}}};
}

std::string page(const Json& json) { return job_page(read_job_report(json, "doc.json"), "doc.json"); }

TEST(JobPageTest, SaysWhatTheReportSays) {
  const std::string html = page(report());
  for (const char* part :
       {"QQQ, calibrated on 4,096 tokens: 2 linear layers quantized, stored as qqq.", "1.50 MB",
        "5.50 bits per weight", "12.5", "foretold", "6 linear layers took the Hessian of another",
        "model.layers.1.mlp.up_proj", "Nothing unusual about its input", "<span>quantize</span>", "4.250"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("{{"), std::string::npos);
  EXPECT_LT(html.find("model.layers.1.mlp.up_proj</bdi>"),
            html.find("model.layers.0.self_attn.q_proj</bdi>"));
}

TEST(JobPageTest, AdviceFollowsTheReason) {
  const auto advice = [](const char* key, const Json& value) {
    Json json = report();
    json["modules"][1][key] = value;
    return advice_for(read_job_report(json, "doc.json").modules[1]);
  };
  EXPECT_NE(advice("fallback", "12 tokens").find("Rounded plainly: 12 tokens."), std::string::npos);
  EXPECT_NE(advice("samples", 100).find("Fewer tokens than its 128 input columns"), std::string::npos);
  EXPECT_NE(advice("damp_attempts", 3).find("nearly singular"), std::string::npos);
  EXPECT_NE(advice("group_size", -1).find("One scale for a whole row"), std::string::npos);
  EXPECT_NE(advice("diagonal_spread", 500.0).find("gramian smooth"), std::string::npos);
  EXPECT_NE(advice("dead_columns", 64).find("input columns are 0"), std::string::npos);
}

TEST(JobPageTest, WhatWentWrongIsCounted) {
  Json json = report();
  json["modules"][0]["fallback"] = "no tokens";
  json["modules"][1]["dead_columns"] = 3;
  json["modules"][1]["damp_attempts"] = 2;
  json["skipped"] = {"model.layers.0.mlp.gate"};
  json["experts_below_minimum"] = {"model.layers.0.mlp.experts.7.up_proj"};
  json["resumed_at_layer"] = 4;
  const std::string html = page(json);
  for (const char* part :
       {"1 module rounded plainly", "3 columns in all", "damped more than once",
        "1 linear layer left as they were", "1 expert saw fewer tokens", "went on at layer 4"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
}

TEST(JobPageTest, TextsAreEscaped) {
  Json json = report();
  json["modules"][1]["name"] = "<script>alert(1)</script>.1.x";
  EXPECT_EQ(page(json).find("<script>alert"), std::string::npos);
}

TEST(JobPageTest, RefusesWhatDoesNotFit) {
  for (const auto& [key, value] : std::map<std::string, Json>{
           {"seconds", "long"}, {"modules", 3}, {"peak_rss_bytes", -1}, {"gramian", 1}}) {
    Json json = report();
    json[key] = value;
    EXPECT_NE(message_of([&] { page(json); }).find(key), std::string::npos) << key;
  }
  Json json = report();
  json["modules"][0]["in_features"] = 1.5;
  EXPECT_NE(message_of([&] { page(json); }).find("modules[0].in_features"), std::string::npos);
}

std::string line(const Json& json) { return json.dump() + "\n"; }
Json event(const char* name, double time, const Json& fields) {
  Json json{{"event", name}, {"ts", time}};
  json.update(fields);
  return json;
}
std::string start(double time) {
  return line(event("start", time,
                    {{"gramian", "0.1.0"},
                     {"method", "qqq"},
                     {"output", "OUT"},
                     {"layers", 3},
                     {"tokens", 512},
                     {"cpu_level", "avx2"}}));
}
std::string solve(double time, int layer, double error) {
  const std::string name = "model.layers." + std::to_string(layer) + ".mlp.up_proj";
  return line(event("solve", time,
                    {{"layer", layer},
                     {"module", name},
                     {"relative_error", error},
                     {"fallback", nullptr},
                     {"seconds", 0.1}}));
}
std::string layer(double time, int index, double resident) {
  return line(event("layer", time,
                    {{"layer", index},
                     {"stages", {{"solve", 1.0}}},
                     {"resident_bytes", resident},
                     {"peak_rss_bytes", resident + 1}}));
}

TEST(JobTelemetryTest, AJobThatBrokeOff) {
  const std::string text =
      start(100) + solve(101, 0, 0.1) + layer(102, 0, 5) + solve(103, 1, 0.2) + R"({"event":"sol)";
  const JobDocument job = read_job_telemetry(text, "t.jsonl");
  EXPECT_FALSE(job.finished);
  EXPECT_EQ(job.finished_layers, 1);
  EXPECT_EQ(job.modules.size(), 2U);
  EXPECT_EQ(job.seconds, 3);
  const std::string html = job_page(job, "t.jsonl");
  EXPECT_NE(html.find("Not finished: 1 of 3 layers are done"), std::string::npos);
}

TEST(JobTelemetryTest, GoesOnWithWhatALaterRunAppended) {
  const std::string first = start(100) + solve(101, 0, 0.1) + layer(102, 0, 5) + solve(103, 1, 0.2);
  const std::string second =
      start(200) + line(event("resume", 201, {{"finished_layers", 1}})) + solve(202, 1, 0.3) +
      layer(203, 1, 7) + solve(204, 2, 0.1) + layer(205, 2, 6) +
      line(event("end", 206, {{"seconds", 8.5}, {"fallbacks", 0}, {"peak_rss_bytes", 9}}));
  const JobDocument job = read_job_telemetry(first + second, "t.jsonl");
  EXPECT_TRUE(job.finished);
  EXPECT_EQ(job.seconds, 8.5);
  ASSERT_EQ(job.modules.size(), 3U);
  EXPECT_EQ(job.modules[1].module.relative_error, 0.3);
  ASSERT_EQ(job.memory.size(), 3U);
  ASSERT_EQ(job.stages.size(), 1U);
  EXPECT_EQ(job.stages[0].second, 3);
  EXPECT_NE(job_page(job, "t.jsonl").find("<polyline points=\"0.0,"), std::string::npos);
  // Another job in the same file begins anew.
  EXPECT_EQ(read_job_telemetry(first + start(300) + solve(301, 0, 0.1), "t.jsonl").modules.size(), 1U);
}

TEST(JobTelemetryTest, RefusesWhatIsNone) {
  EXPECT_NE(message_of([] { read_job_telemetry("", "t.jsonl"); }).find("tells of no job"), std::string::npos);
  EXPECT_NE(
      message_of([] { read_job_telemetry("{\"event\":\"start\",\"ts\":1}\n", "t.jsonl"); }).find("line 1"),
      std::string::npos);
  EXPECT_NE(
      message_of([] { read_job_telemetry(start(1) + "nonsense\n" + start(2), "t.jsonl"); }).find("line 2"),
      std::string::npos);
}

}  // namespace
}  // namespace gramian
