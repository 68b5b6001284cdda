// Files that would make little text into much work or much memory.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "formats/tokenizer_fixture.h"

namespace gramian {
namespace {

using namespace testing_support;

std::string error_of(const Json& json, const std::string& text) {
  try {
    load(json).encode(text);
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::corrupt_data)) << error.what();
    return error.what();
  }
  return "";
}

Json with_regex(const std::string& regex) {
  Json json = small_tokenizer();
  json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}};
  json["decoder"] = {{"type", "Fuse"}};
  json["model"]["byte_fallback"] = false;
  json["model"]["unk_token"] = "a";
  return json;
}

// One match stayed below the limit of steps, and a text of many such matches took as many times as long.
TEST(TokenizerLimitsTest, MatchesOfOneTextShareTheirSteps) {
  const Json json = with_regex("(?:a+)+b|[^z]");
  std::string text;
  for (int i = 0; i < 30; ++i) text += std::string(18, 'a') + "c";
  EXPECT_NE(error_of(json, text).find("match limit exceeded"), std::string::npos);
  EXPECT_EQ(error_of(json, "aaaac"), "");
}

// A run that is as long as the text costs as many steps, and is no fault.
TEST(TokenizerLimitsTest, LongRunsAreMatched) {
  const std::string text = std::string(1 << 20, ' ') + "a" + std::string(1 << 18, '\n');
  EXPECT_EQ(error_of(with_regex("\\s+(?!\\S)|\\s+|a"), text), "");
}

TEST(TokenizerLimitsTest, ReplacementsDoNotMultiply) {
  const Json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const auto steps = [&](size_t count) { return std::vector<Json>(count, twice); };
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps(3)}};
  EXPECT_EQ(load(json).encode("ab"), bytes_of("aaaaaaaab"));
  json["normalizer"]["normalizers"] = steps(40);
  EXPECT_NE(error_of(json, "ab").find("the replacements make more than"), std::string::npos);
  json["normalizer"] = nullptr;
  json["decoder"] = {{"type", "Sequence"}, {"decoders", steps(40)}};
  EXPECT_THROW((void)load(json).decode(bytes_of("ab")), Error);
}

TEST(TokenizerLimitsTest, OneCharacterIsOne) {
  for (const std::string text : {"", "ab", "\u2581\u2581"}) {
    Json json = small_tokenizer();
    json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", text}};
    EXPECT_NE(load_error(json, ErrorKind::corrupt_data).find("expected one character"), std::string::npos);
    json = small_tokenizer();
    json["decoder"] = {{"type", "Strip"}, {"content", text}, {"start", 1}, {"stop", 0}};
    EXPECT_NE(load_error(json, ErrorKind::corrupt_data).find("expected one character"), std::string::npos);
  }
}

TEST(TokenizerLimitsTest, ATemplateHoldsTheTextOnce) {
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  Json json = small_tokenizer();
  json["post_processor"] = {
      {"type", "TemplateProcessing"}, {"single", {text, text}}, {"special_tokens", Json::object()}};
  load_error(json, ErrorKind::unsupported);
}

// A NUL ended the file for its parser, whatever came behind it.
TEST(TokenizerLimitsTest, NothingFollowsTheFile) {
  const std::string whole = small_tokenizer().dump();
  EXPECT_NE(load_error(whole + std::string("\0 more", 6), ErrorKind::corrupt_data).find("a NUL at byte"),
            std::string::npos);
}

// Each of them measured the whole run.
TEST(TokenizerLimitsTest, TokensOfWhiteSpaceInWhiteSpace) {
  for (const char* side : {"lstrip", "rstrip"}) {
    Json json = small_tokenizer();
    Json token = added_token(300, " ");
    token[side] = true;
    json["added_tokens"] = {token};
    const Tokenizer tokenizer = load(json);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_GT(tokenizer.encode(std::string(400'000, ' ')).size(), 0u);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  }
}

}  // namespace
}  // namespace gramian
