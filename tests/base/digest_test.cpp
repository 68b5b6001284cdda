#include "base/digest.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace gramian {
namespace {

TEST(Digest, IsXxh3) {
  // The library's published value for no input.
  EXPECT_EQ(digest(std::string_view()), "99aa06d3014798d86001c324468d497f");
}

TEST(Digest, EveryByteCounts) {
  std::vector<std::byte> bytes((size_t{33} << 20) + 5);
  std::set<std::string> seen{digest(bytes)};
  for (const size_t at : {size_t{0}, size_t{1} << 24, bytes.size() - 1}) {
    bytes[at] = std::byte{1};
    EXPECT_TRUE(seen.insert(digest(bytes)).second) << at;
  }
  EXPECT_TRUE(seen.insert(digest(std::span(bytes).first(bytes.size() - 1))).second);
}

TEST(Digest, ThreadsChangeNothing) {
  std::vector<std::byte> bytes((size_t{70} << 20) + 1);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 7);
  ThreadPool pool(3);
  EXPECT_EQ(digest(bytes, &pool), digest(bytes));
}

}  // namespace
}  // namespace gramian
