#include "base/problems.h"

#include <gtest/gtest.h>

#include <optional>

namespace gramian {
namespace {

std::optional<Error> refusal(const Problems& problems) {
  try {
    problems.refuse();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

TEST(Problems, OneIsThrownAsItWasAndSeveralAreListed) {
  Problems problems;
  EXPECT_TRUE(problems.check([] {}));
  EXPECT_TRUE(problems.none());
  EXPECT_FALSE(refusal(problems));

  EXPECT_FALSE(problems.check([] { throw Error(ErrorKind::io, "disk", "is full"); }));
  EXPECT_FALSE(problems.none());
  EXPECT_STREQ(refusal(problems)->what(), "disk: is full");
  EXPECT_EQ(refusal(problems)->exit_code(), 1);

  problems.check([] { throw Error(ErrorKind::unsupported, "model", "2 layers:\n  a\n  b", "skip them"); });
  EXPECT_STREQ(refusal(problems)->what(),
               "2 problems:\n- disk: is full\n- model: 2 layers:\n    a\n    b; skip them");
  EXPECT_EQ(refusal(problems)->exit_code(), 2);
}

TEST(Problems, ListsOfListsAreOneList) {
  Problems outer;
  outer.check([] { throw Error(ErrorKind::corrupt_data, "", "a"); });
  outer.check([] {
    Problems inner;
    inner.check([] { throw Error(ErrorKind::corrupt_data, "", "b"); });
    inner.check([] { throw Error(ErrorKind::corrupt_data, "", "c"); });
    inner.refuse();
  });
  EXPECT_STREQ(refusal(outer)->what(), "3 problems:\n- a\n- b\n- c");
}

TEST(Problems, InterruptsAndBugsPass) {
  Problems problems;
  for (const ErrorKind kind : {ErrorKind::interrupted, ErrorKind::internal})
    EXPECT_THROW(problems.check([&] { throw Error(kind, "", "now"); }), Error);
  EXPECT_TRUE(problems.none());
}

}  // namespace
}  // namespace gramian
