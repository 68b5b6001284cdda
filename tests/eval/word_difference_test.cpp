#include "eval/word_difference.h"

#include <gtest/gtest.h>

namespace gramian {
namespace {

// Marked pieces in brackets.
std::string shown(const std::vector<TextPiece>& pieces) {
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.differs ? "[" + piece.text + "]" : piece.text;
  return text;
}

void expect(const std::string& left, const std::string& right, const std::string& left_shown,
            const std::string& right_shown) {
  const auto [a, b] = word_difference(left, right);
  EXPECT_EQ(shown(a), left_shown);
  EXPECT_EQ(shown(b), right_shown);
  const auto [c, d] = word_difference(right, left);
  EXPECT_EQ(shown(c), right_shown);
  EXPECT_EQ(shown(d), left_shown);
}

TEST(WordDifference, EqualTexts) {
  expect("", "", "", "");
  expect(" one two\n", " one two\n", " one two\n", " one two\n");
  expect("same words", "same  words", "same words", "same  words");
}

TEST(WordDifference, PartsAfterACommonBeginning) {
  expect("She saw a cat.", "She saw a dog.", "She saw a [cat.]", "She saw a [dog.]");
  expect("She saw", "She saw a dog today", "She saw", "She saw [a dog today]");
  expect("", "all new", "", "[all new]");
}

TEST(WordDifference, LongRunsAreSharedAgainShortOnesAreNot) {
  expect("x one two three y", "z one two three w", "[x] one two three [y]", "[z] one two three [w]");
  expect("x one two y", "z one two w", "[x one two y]", "[z one two w]");
  expect("a red fox and then we go", "a blue fox and then we went", "a [red] fox and then we [go]",
         "a [blue] fox and then we [went]");
}

TEST(WordDifference, WhiteSpaceStays) {
  expect("one\n\ntwo \tthree", "one\n\ntwo \tfour", "one\n\ntwo \t[three]", "one\n\ntwo \t[four]");
}

TEST(WordDifference, LongTextsDifferWhole) {
  std::string left = "both", right = "both";
  for (int i = 0; i < 3000; ++i) {
    left += " left one two three";
    right += " right one two three";
  }
  const auto [a, b] = word_difference(left, right);
  ASSERT_EQ(a.size(), 2u);
  ASSERT_EQ(b.size(), 2u);
  EXPECT_EQ(a[0].text, "both ");
  EXPECT_EQ(a[1].text, left.substr(5));
  EXPECT_TRUE(a[1].differs && b[1].differs);
}

}  // namespace
}  // namespace gramian
