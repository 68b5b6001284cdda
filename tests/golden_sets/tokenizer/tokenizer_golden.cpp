// Each folder with a golden.jsonl and a tokenizer.json is one case: every line's ids and decoded texts must
// match.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/tokenizer.h"
#include "support/golden.h"

namespace gramian {
namespace {

using Ids = std::vector<int64_t>;

constexpr int kReportedMax = 5;

// Counts mismatches and prints the first ones.
class Report {
 public:
  template <class T>
  void check(const std::string& field, int line, const std::string& text, const T& actual,
             const T& expected) {
    if (actual == expected) return;
    if (++mismatches_ > kReportedMax) return;
    ADD_FAILURE() << "line " << line << ", " << field << " of " << testing::PrintToString(text)
                  << "\n  expected " << testing::PrintToString(expected) << "\n  found    "
                  << testing::PrintToString(actual);
  }
  int mismatches() const { return mismatches_; }

 private:
  int mismatches_ = 0;
};

void check_line(const Tokenizer& tokenizer, const nlohmann::json& golden, int line, Report& report) {
  const auto text = golden.at("text").get<std::string>();
  const auto ids = golden.at("ids").get<Ids>();
  const auto ids_plain = golden.at("ids_plain").get<Ids>();
  report.check("ids", line, text, tokenizer.encode(text, {.add_special_tokens = true}), ids);
  report.check("ids_plain", line, text, tokenizer.encode(text), ids_plain);
  report.check("decoded", line, text, tokenizer.decode(ids_plain), golden.at("decoded").get<std::string>());
  report.check("decoded_skip", line, text, tokenizer.decode(ids, /*skip_special=*/true),
               golden.at("decoded_skip").get<std::string>());
}

void check_folder(const std::filesystem::path& folder) {
  std::optional<Tokenizer> tokenizer;
  try {
    tokenizer.emplace(folder / "tokenizer.json");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported) throw;
    GTEST_SKIP() << folder << ": " << error.what();
  }
  std::ifstream file(folder / "golden.jsonl");
  Report report;
  int line = 0, checked = 0;
  for (std::string text; std::getline(file, text);) {
    ++line;
    if (text.empty()) continue;
    check_line(*tokenizer, nlohmann::json::parse(text), line, report);
    ++checked;
  }
  EXPECT_GT(checked, 0) << folder << " has an empty golden.jsonl";
  EXPECT_EQ(report.mismatches(), 0) << "in " << folder;
}

}  // namespace
}  // namespace gramian

int main(int argc, char** argv) {
  using namespace gramian;
  return golden::run(argc, argv, "tokenizer", [](const std::filesystem::path& root) {
    for (const std::filesystem::path& folder : golden::folders_with(root, "golden.jsonl")) {
      golden::add("TokenizerGolden", std::filesystem::relative(folder, root).string(),
                  [folder] { check_folder(folder); });
    }
  });
}
