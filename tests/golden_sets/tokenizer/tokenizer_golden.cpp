// Each folder with a golden.jsonl and a tokenizer.json is one case: every line's ids and decoded texts must
// match.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "formats/gguf/convert.h"
#include "formats/gguf/model_reader.h"
#include "formats/tokenizer.h"
#include "formats/tokenizer/unicode.h"
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

// The parts of a stream, one behind the other; each must be UTF-8.
std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  TextStream stream(tokenizer, skip_special);
  std::string text;
  const auto add = [&](const std::string& part) {
    EXPECT_EQ(tokenizer::find_invalid_utf8(part), std::string::npos) << testing::PrintToString(part);
    text += part;
  };
  for (const int64_t id : ids) add(stream.push(id));
  add(stream.finish());
  return text;
}

void check_line(const Tokenizer& tokenizer, const nlohmann::json& golden, int line, Report& report) {
  const auto text = golden.at("text").get<std::string>();
  const auto ids = golden.at("ids").get<Ids>();
  const auto ids_plain = golden.at("ids_plain").get<Ids>();
  report.check("ids", line, text, tokenizer.encode(text, {.add_special_tokens = true}), ids);
  report.check("ids_plain", line, text, tokenizer.encode(text), ids_plain);
  report.check("decoded", line, text, tokenizer.decode(ids_plain), golden.at("decoded").get<std::string>());
  report.check("decoded_skip", line, text, tokenizer.decode(ids, /*skip_special=*/true),
               golden.at("decoded_skip").get<std::string>());
  report.check("decoded, streamed", line, text, streamed(tokenizer, ids_plain, false),
               golden.at("decoded").get<std::string>());
  report.check("decoded_skip, streamed", line, text, streamed(tokenizer, ids, true),
               golden.at("decoded_skip").get<std::string>());
}

// Any tokens in any order, most of which no text gives: a model may write them.
void check_random_streams(const Tokenizer& tokenizer, Report& report) {
  std::vector<int64_t> known;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    try {
      tokenizer.decode({id});
      known.push_back(id);
    } catch (const Error&) {
    }
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    Ids ids(random() % 12);
    // Small ids are more often bytes and special tokens.
    for (int64_t& id : ids) id = known[random() % (random() % 2 == 0 ? known.size() : 300)];
    for (const bool skip : {false, true}) {
      report.check("a random stream", i, testing::PrintToString(ids), streamed(tokenizer, ids, skip),
                   tokenizer.decode(ids, skip));
    }
  }
}

// What a GGUF file tells of a tokenizer gives the same ids, but where it has no words: for a normalizer (NFC), for blanks that added
// tokens swallow, for a blank that is put first only before a text without one, and for pieces that no merge makes.
void check_through_gguf(const std::filesystem::path& folder, const Tokenizer& tokenizer) {
  Log log(LogLevel::quiet);
  gguf::Metadata metadata;
  if (!gguf::add_tokenizer(folder, nlohmann::ordered_json::object(), tokenizer.vocab_size(), metadata, log))
    return;
  const std::optional<std::string> told = gguf::tokenizer_json(metadata, "model.gguf");
  ASSERT_TRUE(told) << folder;
  const Tokenizer back = Tokenizer::parse(*told, "model.gguf");
  std::ifstream file(folder / "golden.jsonl");
  int lines = 0, same = 0;
  for (std::string text; std::getline(file, text);) {
    if (text.empty()) continue;
    const auto golden = nlohmann::json::parse(text);
    const auto ids = golden.at("ids_plain").get<Ids>();
    ++lines;
    same += back.encode(golden.at("text").get<std::string>()) == ids &&
            back.decode(ids) == golden.at("decoded").get<std::string>();
  }
  EXPECT_GE(same * 100, lines * 85) << folder << ": " << same << " of " << lines;
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
  check_random_streams(*tokenizer, report);
  check_through_gguf(folder, *tokenizer);
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
