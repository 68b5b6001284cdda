#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "formats/tokenizer_fixture.h"

namespace gramian {
namespace {

using namespace testing_support;

// Tokens from id 300 on, with `flags` set on the first.
Json with_tokens(const std::vector<std::string>& contents, const std::vector<std::string>& flags = {}) {
  Json json = small_tokenizer();
  int64_t id = 300;
  for (const std::string& content : contents) json["added_tokens"].push_back(added_token(id++, content));
  for (const std::string& flag : flags) json["added_tokens"][0][flag] = true;
  return json;
}

// Ids from 300 on stand for themselves, others for characters: "a", 300, "b" reads a{300}b.
std::string show(const Ids& ids) {
  std::string text;
  for (const int64_t id : ids) {
    if (id < 256) {
      text.push_back(static_cast<char>(id));
    } else {
      text += "{" + std::to_string(id) + "}";
    }
  }
  return text;
}

std::string encode(const Json& json, const std::string& text, const EncodeOptions& options = {}) {
  return show(load(json).encode(text, options));
}

TEST(AddedTokensTest, LeftmostThenLongest) {
  const Json json = with_tokens({"<a", "<a>", "<a><b>", "a>z"});
  EXPECT_EQ(encode(json, "x<ay"), "x{300}y");
  EXPECT_EQ(encode(json, "<a>z"), "{301}z");
  EXPECT_EQ(encode(json, "<a><b><a>"), "{302}{301}");
  EXPECT_EQ(encode(json, "a>z<a"), "{303}{300}");
  EXPECT_EQ(encode(json, "<<a>"), "<{301}");
  EXPECT_EQ(encode(json, "<"), "<");
}

TEST(AddedTokensTest, SpecialTokensAreTextWithoutParseSpecial) {
  Json json = with_tokens({"<s>", "<t>"}, {"special"});
  EXPECT_EQ(encode(json, "a<s>b<t>"), "a{300}b{301}");
  EXPECT_EQ(encode(json, "a<s>b<t>", {.parse_special = false}), "a<s>b{301}");
  EXPECT_EQ(load(json).decode({'a', 300, 301}), "a<s><t>");
  EXPECT_EQ(load(json).decode({'a', 300, 301}, /*skip_special=*/true), "a<t>");
}

TEST(AddedTokensTest, StripSwallowsWhiteSpace) {
  const std::string text = "a \t<m>\u3000\n b <m><m> c";
  EXPECT_EQ(encode(with_tokens({"<m>"}, {"lstrip"}), text), "a{300}\xE3\x80\x80\n b{300}{300} c");
  EXPECT_EQ(encode(with_tokens({"<m>"}, {"rstrip"}), text), "a \t{300}b {300}{300}c");
  EXPECT_EQ(encode(with_tokens({"<m>"}, {"lstrip", "rstrip"}), text), "a{300}b{300}{300}c");
  EXPECT_EQ(encode(with_tokens({"<m>"}, {"lstrip", "rstrip"}), "  <m>  <m>  "), "{300}{300}");
  EXPECT_EQ(encode(with_tokens({"<m>"}, {"lstrip"}), "\xC3\xA9 <m>"), "\xC3\xA9{300}");
}

// White space that rstrip swallowed can hold a token itself: it still counts, unless it strips to nothing.
TEST(AddedTokensTest, TokensInsideSwallowedWhiteSpace) {
  Json json = with_tokens({"<m>", "\n"}, {"rstrip"});
  EXPECT_EQ(encode(json, "<m>\nx"), "{300}{301}x");
  json["added_tokens"][1]["lstrip"] = true;
  EXPECT_EQ(encode(json, "<m>\nx"), "{300}x");
  EXPECT_EQ(encode(json, "<m>x \nx"), "{300}x{301}x");
}

TEST(AddedTokensTest, SingleWord) {
  const Json json = with_tokens({"word"}, {"single_word"});
  for (const std::string text :
       {"words", "sword", "_word", "word1", "\u00E9word", "word\u0301", "wordword"}) {
    EXPECT_EQ(encode(json, text), text);
  }
  EXPECT_EQ(encode(json, "word"), "{300}");
  EXPECT_EQ(encode(json,
                   "a word, (word) word.\u20AC"
                   "word"),
            "a {300}, ({300}) {300}.\u20AC{300}");
}

TEST(AddedTokensTest, NormalizedTokensMatchNormalizedText) {
  const std::string composed = "<\u00E9>", decomposed = "<e\u0301>", text = composed + " " + decomposed;
  Json json = with_tokens({composed});
  json["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(encode(json, text), "{300} " + composed);
  json["added_tokens"][0]["normalized"] = true;
  EXPECT_EQ(encode(json, text), "{300} {300}");
  json["added_tokens"][0]["content"] = decomposed;  // the content is normalized as well
  EXPECT_EQ(encode(json, text), "{300} {300}");
  json["added_tokens"][0]["normalized"] = false;
  EXPECT_EQ(encode(json, text), composed + " {300}");
}

TEST(AddedTokensTest, ContradictionsAreRefused) {
  Json json = with_tokens({"<a>", "<b>"});
  json["added_tokens"][1]["id"] = 300;
  EXPECT_NE(load_error(json, ErrorKind::corrupt_data).find("300"), std::string::npos);
  json["added_tokens"][1] = added_token(301, "<a>");
  EXPECT_NE(load_error(json, ErrorKind::corrupt_data).find("twice"), std::string::npos);
  json["added_tokens"][1] = added_token(301, "a");  // 97 in the vocabulary
  EXPECT_NE(load_error(json, ErrorKind::corrupt_data).find("97"), std::string::npos);
  json["added_tokens"][1] = added_token(98, "<b>");  // "b" in the vocabulary
  EXPECT_NE(load_error(json, ErrorKind::corrupt_data).find("98"), std::string::npos);
  json["added_tokens"][1] = added_token(97, "a");
  EXPECT_EQ(encode(json, "ab<a>"), "ab{300}");
}

}  // namespace
}  // namespace gramian
