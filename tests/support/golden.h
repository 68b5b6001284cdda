// Golden sets: compares with files that peer implementations made. Each set is one executable and one CTest entry,
// golden.<set>; it walks $GRAMIAN_GOLDEN/<set> (default tests/golden/<set>) at run time, so any folder of the same
// structure can be tested.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace gramian::golden {

// The set's folder: $GRAMIAN_GOLDEN/<set>, or tests/golden/<set>.
inline std::filesystem::path folder(const std::string& set) {
  const char* root = std::getenv("GRAMIAN_GOLDEN");
  return std::filesystem::path(root != nullptr && *root != '\0' ? root : "tests/golden") / set;
}

// Every folder at or below `root` that holds a file called `file`, sorted.
inline std::vector<std::filesystem::path> folders_with(const std::filesystem::path& root,
                                                       const std::string& file) {
  std::vector<std::filesystem::path> found;
  if (std::filesystem::exists(root / file)) found.push_back(root);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.is_directory() && std::filesystem::exists(entry.path() / file)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

class Case : public testing::Test {
 public:
  explicit Case(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override { body_(); }

 private:
  std::function<void()> body_;
};

// Registers one case; `body` uses gtest assertions, and GTEST_SKIP() << reason for a kind not built.
inline void add(const std::string& suite, const std::string& name, std::function<void()> body) {
  testing::RegisterTest(suite.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                        [body = std::move(body)]() -> testing::Test* { return new Case(body); });
}

// main() of a set: `collect(folder)` registers the cases. Returns 77 when the set is absent, 1 when it holds no case.
inline int run(int argc, char** argv, const std::string& set,
               const std::function<void(const std::filesystem::path&)>& collect) {
  testing::InitGoogleTest(&argc, argv);
  const std::filesystem::path root = folder(set);
  if (!std::filesystem::is_directory(root)) {
    std::printf("golden set '%s' is absent (%s): skipped\n", set.c_str(), root.c_str());
    return 77;
  }
  collect(root);
  if (testing::UnitTest::GetInstance()->total_test_count() == 0) {
    std::printf("golden set '%s' is present but holds no case (%s)\n", set.c_str(), root.c_str());
    return 1;
  }
  return RUN_ALL_TESTS();
}

}  // namespace gramian::golden
