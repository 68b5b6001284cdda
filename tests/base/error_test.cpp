#include "base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace gramian {
namespace {

TEST(Error, IsOneLineOfPlaceFaultAndRemedy) {
  EXPECT_STREQ(Error(ErrorKind::io, "a.txt", "cannot read", "check the disk").what(),
               "a.txt: cannot read; check the disk");
  EXPECT_STREQ(Error(ErrorKind::io, "a.txt", "cannot read").what(), "a.txt: cannot read");
  EXPECT_STREQ(Error(ErrorKind::io, "", "cannot read", "wait").what(), "cannot read; wait");
}

TEST(Error, InputThatTheUserCanMendExitsWithTwo) {
  for (const ErrorKind kind :
       {ErrorKind::invalid_argument, ErrorKind::unsupported, ErrorKind::corrupt_data}) {
    EXPECT_EQ(Error(kind, "", "x").exit_code(), 2);
    EXPECT_EQ(Error(kind, "", "x").kind(), kind);
  }
  for (const ErrorKind kind : {ErrorKind::io, ErrorKind::numerical, ErrorKind::internal}) {
    EXPECT_EQ(Error(kind, "", "x").exit_code(), 1);
    EXPECT_EQ(Error(kind, "", "x").kind(), kind);
  }
}

TEST(Error, AFailedCheckIsABugOfOurs) {
  const int found = 3;
  EXPECT_NO_THROW(GRAMIAN_CHECK(found == 3, "not reached"));
  try {
    GRAMIAN_CHECK(found == 4, "found ", found);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
    const std::string text = error.what();
    EXPECT_NE(text.find("found == 4: found 3"), std::string::npos) << text;
    EXPECT_NE(text.find("error_test.cpp"), std::string::npos) << text;
  }
}

TEST(Str, JoinsAsAStreamDoes) { EXPECT_EQ(str("a", 1, ' ', 2.5, std::string("b")), "a1 2.5b"); }

}  // namespace
}  // namespace gramian
