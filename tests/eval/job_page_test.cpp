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

TEST(JobPageTest, HeldOutRows) {
  Json json = report();
  const auto layer = [](int index, double own, double since, const Json& flagged) {
    return Json{{"layer", index},
                {"error", own},
                {"accumulated", since},
                {"worst_module", nullptr},
                {"flagged", flagged}};
  };
  EXPECT_EQ(page(json).find("id=\"proof\""), std::string::npos);
  const Json flagged = Json::array({{{"module", "bad<one>"}, {"error", 0.5}, {"reason", "few rows"}},
                                    {{"module", "worse"}, {"error", 0.75}, {"reason", ""}}});
  json["held_out"] = {{"rows", 4},
                      {"tokens", 2048},
                      {"limit", 0.3},
                      {"layers", {layer(0, 0.01, 0.01, Json::array()), layer(1, 0.2, 0.21, flagged)}}};
  const std::string html = page(json);
  for (const char* part :
       {"4 rows, 2,048 tokens", "loses most by itself is 1 (20.0\u202f%)", "are 21.0\u202f% off",
        "2 linear layers flagged above 30.0\u202f%", "bad&lt;one&gt;", "few rows", "nothing unusual",
        // 0.2 of 0.21 is near the top.
        "points=\"0.0,150.7 1000.0,11.3\"", "points=\"0.0,150.7 1000.0,4.0\""})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_LT(html.find("worse</bdi>"), html.find("bad&lt;one&gt;</bdi>"));
  json["held_out"]["layers"][1]["error"] = -1;
  EXPECT_NE(message_of([&] { page(json); }).find("held_out.layers[1].error"), std::string::npos);
}

TEST(JobPageTest, TokensOfExperts) {
  Json json = report();
  EXPECT_EQ(page(json).find("id=\"coverage\""), std::string::npos);
  const int tokens[] = {100, 0, 300};
  for (int expert = 0; expert < 3; ++expert) {
    Json one = module("model.layers.0.mlp.experts." + std::to_string(expert) + ".up_proj", 0.1);
    one["samples"] = tokens[expert];
    json["modules"].push_back(one);
  }
  const std::string html = page(json);
  for (const char* part :
       {"1 expert without a calibration token", "<bdi>model.layers.0.mlp</bdi>", "3 experts, 0 to 300 tokens",
        "M666.67 40v-40.00h266.67v40.00z", "<data value=\"100\">100</data>"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
}

TEST(JobPageTest, EvaluationAndStories) {
  JobDocument document = read_job_report(report(), "doc.json");
  Json evaluation{
      {"perplexity", 12.5},
      {"kl_mean", 0.025},
      {"kl_ci95", {0.02, 0.03}},
      {"tokens", 900},
      {"by_position",
       {{{"context", {1, 1}}, {"tokens", 10}, {"negative_log_likelihood", 4.0}, {"kl_mean", 0.1}},
        {{"context", {2, 3}}, {"tokens", 20}, {"negative_log_likelihood", 3.0}, {"kl_mean", 0.05}}}}};
  document.evaluation = read_evaluation(evaluation, "eval.json");
  document.stories = {{"Once", "upon a time", "quantized", "upon a hill"},
                      {"Then", "same", "quantized", "same"}};
  std::string html = job_page(document, "doc.json");
  for (const char* part :
       {"12.500", "0.0250", "0.02000 to 0.03000", "Mean KL divergence", "2\u20133", "width: 50.00%",
        "Two continuations of each prompt", "<mark>time</mark>", "Both models go on with the same words."})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  for (Json& part : evaluation["by_position"]) part["kl_mean"] = nullptr;
  evaluation["kl_mean"] = evaluation["kl_ci95"] = nullptr;
  document.evaluation = read_evaluation(evaluation, "eval.json");
  html = job_page(document, "doc.json");
  EXPECT_NE(html.find("Mean negative log-likelihood"), std::string::npos);
  EXPECT_NE(html.find("width: 75.00%"), std::string::npos);
  evaluation["by_position"][0]["context"] = {1};
  EXPECT_NE(message_of([&] { read_evaluation(evaluation, "eval.json"); }).find("by_position[0].context"),
            std::string::npos);
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
  // Held-out rows of both runs.
  const auto proof = [](double time, int layer, double error) {
    return line(
        event("held_out", time,
              {{"layer", layer}, {"error", error}, {"accumulated", error}, {"flagged", Json::array()}}));
  };
  const JobDocument proved = read_job_telemetry(
      start(100) + proof(101, 0, 0.1) + layer(102, 0, 5) + proof(103, 1, 0.2) + start(200) +
          line(event("resume", 201, {{"finished_layers", 1}})) + proof(202, 1, 0.3),
      "t.jsonl");
  ASSERT_EQ(proved.proofs.size(), 2U);
  EXPECT_EQ(proved.proofs[0].own, 0.1);
  EXPECT_EQ(proved.proofs[1].own, 0.3);
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
