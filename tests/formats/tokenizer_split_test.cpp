// Pre-tokenizers and their regular expressions. ByteLevel's add_prefix_space makes pieces visible: each piece
// that does not begin with a blank gets one.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "formats/tokenizer_fixture.h"

namespace gramian {
namespace {

using namespace testing_support;

Json split_step(const Json& pattern, const std::string& behavior = "Isolated", bool invert = false) {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
}

Json with_steps(const std::vector<Json>& steps) {
  Json json = small_tokenizer();
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  json["pre_tokenizer"]["pretokenizers"].push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}});
  return json;
}

std::string pieces(const Json& json, const std::string& text) {
  const Tokenizer tokenizer = load(json);
  return tokenizer.decode(tokenizer.encode(text));
}

std::string regex_pieces(const std::string& regex, const std::string& text) {
  return pieces(with_steps({split_step({{"Regex", regex}})}), text);
}

TEST(TokenizerSplitTest, Behaviors) {
  const std::vector<std::tuple<std::string, bool, std::string>> cases{
      {"Isolated", false, " a - - b - c"},
      {"Removed", false, " a b c"},
      {"MergedWithPrevious", false, " a- - b- c"},
      {"MergedWithNext", false, " a - -b -c"},
      {"Contiguous", false, " a -- b - c"},
      {"Isolated", true, " a - - b - c"},
      {"Removed", true, " - - -"},
      {"MergedWithPrevious", true, " a - -b -c"},
      {"MergedWithNext", true, " a- - b- c"}};
  for (const auto& [behavior, invert, expected] : cases) {
    EXPECT_EQ(pieces(with_steps({split_step({{"String", "-"}}, behavior, invert)}), "a--b-c"), expected)
        << behavior << (invert ? ", inverted" : "");
  }
}

TEST(TokenizerSplitTest, StringsAreLiteral) {
  EXPECT_EQ(pieces(with_steps({split_step({{"String", ".*"}})}), "a.*b"), " a .* b");
}

TEST(TokenizerSplitTest, StepsFollowOneAnother) {
  EXPECT_EQ(pieces(with_steps({split_step({{"Regex", "\\p{N}{1,3}"}}), split_step({{"Regex", "[a-z]+"}})}),
                   "ab1234C"),
            " ab 123 4 C");
}

TEST(TokenizerSplitTest, EmptyMatchesSplit) { EXPECT_EQ(regex_pieces("x*", "axxb"), " a xx b"); }

TEST(TokenizerSplitTest, Digits) {
  EXPECT_EQ(pieces(with_steps({{{"type", "Digits"}, {"individual_digits", true}}}), "a12\u0663"),
            " a 1 2 \u0663");
  EXPECT_EQ(pieces(with_steps({{{"type", "Digits"}, {"individual_digits", false}}}), "a12\u0663b"),
            " a 12\u0663 b");
}

TEST(TokenizerSplitTest, ByteLevelRule) {
  Json json = small_tokenizer();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  json["model"]["vocab"].update(Json::parse(R"({"Ġthe": 300, "'s": 301, "Ġ12": 302, "Ġ!": 303, "ĠĠ": 304})"));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(json).encode("x's the 12 !   y"), (Ids{'x', 301, 300, 302, 303, 304, ' ', 'y'}));
}

// Where Oniguruma and PCRE2 read a pattern differently, Oniguruma's reading holds.
TEST(TokenizerSplitTest, PatternsMeanWhatOnigurumaSays) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases{
      {"\\s", "a\u0085b\u180Ec", " a \u0085 b\u180Ec"},  // U+180E is no white space
      {"[^\\S]", "a\u00A0b", " a \u00A0 b"},
      {"\\w+", "-a\u0301_1-", " - a\u0301_1 -"},  // marks are word characters
      {"\\h+", "xfF0y", " x fF0 y"},              // hexadecimal digits
      {"^b", "a\nb", " a\n b"},                   // lines, not texts
      {"(?m:a.)", "a\nb", " a\n b"},              // the dot matches line ends
      {"a.", "a\nb", " a\nb"},
      {"x{,2}y", "xxxy", " x xxy"},
      {"\\u0062", "abc", " a b c"},
      {"\\p{Han}+", "a\u6A21\u3001", " a \u6A21 \u3001"},  // the script, without script extensions
      {"[[:space:]]", "a\u180Eb\tc", " a\u180Eb \t c"},
      {"\\p{L}+", "1\U00031350-", " 1 \U00031350 -"},  // a letter since Unicode 15
      {"\\P{L}+", "a\U00031350-", " a\U00031350 -"},
      {"[\\p{N}]", "a\U00011F50", " a \U00011F50"},
      {"(?i:'S)", "a's", " a 's"}};
  for (const auto& [regex, text, expected] : cases) {
    EXPECT_EQ(regex_pieces(regex, text), expected) << regex;
  }
}

TEST(TokenizerSplitTest, BrokenPatternsNameTheOffset) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"a(b", "at offset 3"}, {"[a", "at offset 2"},       {"\\sab)", "at offset 4"},
      {"+", "at offset 0"},   {"\\p{Nonsense}", "offset"}, {"(*ACCEPT)", "at offset 1"},
      {"\\", "offset"}};
  for (const auto& [regex, expected] : cases) {
    const std::string error =
        load_error(with_steps({split_step({{"Regex", regex}})}), ErrorKind::corrupt_data);
    EXPECT_NE(error.find(expected), std::string::npos) << error;
    EXPECT_NE(error.find("pre_tokenizer.pretokenizers[0].pattern.Regex"), std::string::npos) << error;
  }
}

TEST(TokenizerSplitTest, ConstructsThatDifferAreUnsupported) {
  for (const std::string regex :
       {"[a&&b]", "[a[bc]]", "a\\b", "a{2}+", "a{2}?", "\\X", "\\Ka", "[\\W]", "[[:^alpha:]]"}) {
    const std::string error =
        load_error(with_steps({split_step({{"Regex", regex}})}), ErrorKind::unsupported);
    EXPECT_NE(error.find("offset"), std::string::npos) << error;
  }
}

TEST(TokenizerSplitTest, TooCostlyMatchIsAnError) {
  const Tokenizer tokenizer = load(with_steps({split_step({{"Regex", "(?:a|aa|[a-b]a)+$c|^(a+)+$"}})}));
  try {
    tokenizer.encode(std::string(60, 'a') + "b");
    ADD_FAILURE() << "matched";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
    EXPECT_NE(std::string(error.what()).find("match limit"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gramian
