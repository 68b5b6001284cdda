#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "formats/tokenizer.h"
#include "formats/tokenizer/unicode.h"
#include "formats/tokenizer_fixture.h"

namespace gramian {
namespace {

using namespace testing_support;

using Texts = std::vector<std::string>;

// What each push gives, and last what finish() gives.
Texts parts(const Tokenizer& tokenizer, const Ids& ids) {
  TextStream stream(tokenizer);
  Texts all;
  for (const int64_t id : ids) all.push_back(stream.push(id));
  all.push_back(stream.finish());
  return all;
}

// <s>, a few words, a blank and the bytes, as a SentencePiece-like file has them. Ids follow the order.
const std::vector<std::string> kWords{"<s>",    "\u2581a", "b",      "\u2581",
                                      "<0xC3>", "<0xA9>",  "<0x41>", "\u2581\u2581c"};
constexpr int64_t kStart = 0, kA = 1, kB = 2, kBlank = 3, kC3 = 4, kA9 = 5, kByteA = 6, kBlanksC = 7;

Tokenizer blank_tokenizer(const Json& last_steps) {
  Json vocabulary = Json::object();
  for (size_t i = 0; i < kWords.size(); ++i) vocabulary[kWords[i]] = i;
  Json file = small_tokenizer();
  file["model"]["vocab"] = vocabulary;
  file["model"]["byte_fallback"] = true;
  file["pre_tokenizer"] = nullptr;
  Json steps = Json::array({{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                            {{"type", "ByteFallback"}},
                            {{"type", "Fuse"}}});
  for (const Json& step : last_steps) steps.push_back(step);
  file["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  return load(file);
}

Json strip(int start, int stop) {
  return {{"type", "Strip"}, {"content", " "}, {"start", start}, {"stop", stop}};
}

TEST(TextStreamTest, ByteLevelHoldsUnfinishedCharactersOnly) {
  const Tokenizer tokenizer = load(small_tokenizer());
  EXPECT_EQ(parts(tokenizer, bytes_of("a\u00E9\u6A21")), (Texts{"a", "", "\u00E9", "", "", "\u6A21", ""}));
  // A character that breaks off, in the middle and at the end.
  EXPECT_EQ(parts(tokenizer, {0xE6, 0xA8, 'a', 0xFF, 0xE6}),
            (Texts{"", "", "\uFFFDa", "\uFFFD", "", "\uFFFD"}));
  // 0xE0 0x80 begins no character: nothing to wait for.
  EXPECT_EQ(parts(tokenizer, {0xE0, 0x80, 0xED, 0xA0}), (Texts{"", "\uFFFD\uFFFD", "", "\uFFFD\uFFFD", ""}));
}

TEST(TextStreamTest, TheFirstBlankIsStrippedOnce) {
  const Tokenizer tokenizer = blank_tokenizer(Json::array({strip(1, 0)}));
  EXPECT_EQ(parts(tokenizer, {kA, kB, kA, kBlank, kB}), (Texts{"a", "b", " a", " ", "b", ""}));
  EXPECT_EQ(parts(tokenizer, {kBlank, kBlank, kA}), (Texts{"", " ", " a", ""}));
  EXPECT_EQ(parts(tokenizer, {kBlanksC, kBlanksC}), (Texts{" c", "  c", ""}));
  EXPECT_EQ(parts(blank_tokenizer(Json::array()), {kA, kA}), (Texts{" a", " a", ""}));
  EXPECT_EQ(parts(blank_tokenizer(Json::array({strip(2, 0)})), {kBlank, kBlanksC, kBlank}),
            (Texts{"", " c", " ", ""}));
}

TEST(TextStreamTest, RunsOfByteTokensAreHeldToTheirEnd) {
  const Tokenizer tokenizer = blank_tokenizer(Json::array({strip(1, 0)}));
  // C3 A9 would be a character; with another C3 behind it, all three are bad.
  EXPECT_EQ(parts(tokenizer, {kB, kC3, kA9, kB}), (Texts{"b", "", "", "\u00E9b", ""}));
  EXPECT_EQ(parts(tokenizer, {kB, kC3, kA9, kC3, kB}), (Texts{"b", "", "", "", "\uFFFD\uFFFD\uFFFDb", ""}));
  EXPECT_EQ(parts(tokenizer, {kC3, kA9}), (Texts{"", "", "\u00E9"}));
  EXPECT_EQ(parts(tokenizer, {kByteA, kStart}), (Texts{"", "A<s>", ""}));
}

TEST(TextStreamTest, WhatALaterTokenMayChangeWaitsForTheEnd) {
  const Tokenizer stripped = blank_tokenizer(Json::array({strip(0, 1)}));
  EXPECT_EQ(parts(stripped, {kB, kBlank}), (Texts{"", "", "b"}));
  const Tokenizer replaced = blank_tokenizer(
      Json::array({{{"type", "Replace"}, {"pattern", {{"String", "bb"}}}, {"content", "x"}}}));
  EXPECT_EQ(parts(replaced, {kB, kB, kB}), (Texts{"", "", "", "xb"}));
}

TEST(TextStreamTest, UnknownIdsAreNamed) {
  const Tokenizer tokenizer = load(small_tokenizer());
  TextStream stream(tokenizer);
  stream.push('a');
  try {
    stream.push(999);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("position 1"), std::string::npos) << error.what();
  }
}

TEST(TextStreamTest, UnfinishedUtf8) {
  using tokenizer::unfinished_utf8;
  const std::string text = "\xF0\x9F\x98\x80";
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(unfinished_utf8("ab" + text.substr(0, i)), i);
  EXPECT_EQ(unfinished_utf8(text), 0u);
  for (const char* closed :
       {"", "a", "\x80", "\x80\x80\x80", "\xFF", "\xC0", "\xC3\xA9", "\xF5", "\xE0\x80", "\xED\xA0"})
    EXPECT_EQ(unfinished_utf8(closed), 0u);
  EXPECT_EQ(unfinished_utf8("\xE0\x80\xE6"), 1u);
}

}  // namespace
}  // namespace gramian
