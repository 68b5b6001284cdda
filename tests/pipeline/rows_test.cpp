#include "pipeline/rows.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "formats/safetensors.h"
#include "support/files.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

constexpr int64_t kBegin = 0, kEnd = 1, kLetterA = 10;

// One token per byte ('a' is kLetterA), and special tokens <s> and </s>. `single`: the template, with A for
// the text.
Json byte_tokenizer(const std::vector<std::string>& single) {
  Json vocabulary{{"<s>", kBegin}, {"</s>", kEnd}};
  // As byte-level files spell a space and a line end.
  int64_t id = 2;
  for (const char* text : {"\u0120", "\u010a", "<", ">", "/"}) vocabulary[text] = id++;
  for (char letter = 'a'; letter <= 'z'; ++letter)
    vocabulary[std::string(1, letter)] = kLetterA + (letter - 'a');
  Json parts = Json::array(), added = Json::array();
  for (const std::string& part : single) {
    parts.push_back(part == "A" ? Json{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}
                                : Json{{"SpecialToken", {{"id", part}, {"type_id", 0}}}});
  }
  Json special = Json::object();
  for (const char* text : {"<s>", "</s>"}) {
    const auto number = vocabulary[text];
    special[text] = {{"id", text}, {"ids", {number}}, {"tokens", {text}}};
    added.push_back({{"id", number},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return {
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}},
      {"post_processor",
       {{"type", "TemplateProcessing"}, {"single", parts}, {"pair", parts}, {"special_tokens", special}}},
      {"decoder",
       {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
}

class RowsTest : public testing::Test {
 protected:
  RowSet load(const std::string& name, const std::string& content, const RowOptions& options,
              const std::vector<std::string>& single = {"<s>", "A"}) {
    const fs::path path = folder_.path() / name;
    write_bytes(path, content);
    return load_file(path, options, single);
  }
  RowSet load_file(const fs::path& path, const RowOptions& options,
                   const std::vector<std::string>& single = {"<s>", "A"}) {
    write_bytes(folder_.path() / "tokenizer.json", byte_tokenizer(single).dump());
    return load_rows(path, options, folder_.path(), log_);
  }
  fs::path save(const std::map<std::string, at::Tensor>& tensors) {
    save_safetensors(folder_.path() / "rows.safetensors", tensors);
    return folder_.path() / "rows.safetensors";
  }
  static std::string letters(const TokenRow& row) {
    std::string text;
    for (const int64_t id : row)
      text += id >= kLetterA ? static_cast<char>('a' + (id - kLetterA)) : static_cast<char>('0' + id);
    return text;
  }
  static std::vector<std::string> letters(const RowSet& set) {
    std::vector<std::string> all;
    for (const TokenRow& row : set.rows) all.push_back(letters(row));
    return all;
  }
  using Texts = std::vector<std::string>;

  TemporaryFolder folder_;
  Log log_{LogLevel::quiet};
};

// 26 letters in windows of 3: abc def ghi jkl mno pqr stu vwx, and yz left over.
const char kAlphabet[] = "abcdefghijklmnopqrstuvwxyz";

TEST_F(RowsTest, WindowsAreTakenEvenly) {
  // Row i is window floor(8 i / n), behind the begin token (printed 0).
  const RowSet five = load("a.txt", kAlphabet, {.sequence_length = 4, .samples = 5});
  EXPECT_EQ(letters(five), (Texts{"0abc", "0def", "0jkl", "0mno", "0stu"}));
  EXPECT_EQ(five.tokens, 20);
  EXPECT_EQ(five.asked, 5);
  EXPECT_EQ(letters(load("a.txt", kAlphabet, {.sequence_length = 4, .samples = 3})),
            (Texts{"0abc", "0ghi", "0pqr"}));
  EXPECT_EQ(load("a.txt", kAlphabet, {.sequence_length = 4, .samples = 8}).rows.size(), 8u);
  EXPECT_EQ(letters(load("a.txt", kAlphabet, {.sequence_length = 3, .samples = 2}, {"A"})),
            (Texts{"abc", "mno"}));
}

TEST_F(RowsTest, WholeTextsAreNotCut) {
  const RowSet text = load("a.txt", kAlphabet, {.sequence_length = 4, .whole = true});
  EXPECT_EQ(letters(text), (Texts{std::string("0") + kAlphabet}));
  EXPECT_EQ(text.tokens, 27);
  EXPECT_FALSE(text.sequence_length.has_value());
  const RowSet json =
      load("a.jsonl", "{\"text\": \"abcdef\"}\n{\"text\": \"gh\"}\n", {.sequence_length = 4, .whole = true});
  EXPECT_EQ(letters(json), (Texts{"0abcdef", "0gh"}));
}

TEST(SetAside, TakesRowsEvenlyAndLeavesTheOthers) {
  const auto numbered = [] {
    RowSet set;
    for (int64_t i = 0; i < 10; ++i) set.rows.push_back(TokenRow(static_cast<size_t>(i + 1), i));
    set.tokens = 55;
    return set;
  };
  RowSet set = numbered();
  const std::vector<TokenRow> aside = set_aside(set, 3);
  ASSERT_EQ(aside.size(), 3U);
  EXPECT_EQ(aside[0][0], 1);  // floor(10 / 6)
  EXPECT_EQ(aside[1][0], 5);
  EXPECT_EQ(aside[2][0], 8);
  EXPECT_EQ(set.rows.size(), 7U);
  EXPECT_EQ(set.tokens, 55 - 2 - 6 - 9);
  EXPECT_NE(set.policy.find("3 more are held out"), std::string::npos);
  for (int64_t count = 1; count < 10; ++count) {
    RowSet other = numbered();
    EXPECT_EQ(set_aside(other, count).size(), static_cast<size_t>(count));
    EXPECT_EQ(other.rows.size(), static_cast<size_t>(10 - count));
  }
  EXPECT_EQ(error_of([&] { set_aside(set, 7); }).kind(), ErrorKind::invalid_argument);
  EXPECT_TRUE(set_aside(set, 0).empty());
}

TEST_F(RowsTest, OnlyTokensInFrontOfTheTextAreRepeated) {
  EXPECT_EQ(letters(load("a.txt", "abcdef", {.sequence_length = 3}, {"A", "</s>"})), (Texts{"abc", "def"}));
  EXPECT_EQ(letters(load("a.txt", "abcdef", {.sequence_length = 4}, {"<s>", "A", "</s>"})),
            (Texts{"0abc", "0def"}));
  EXPECT_EQ(letters(load("a.txt", "abcd", {.sequence_length = 4}, {"</s>", "<s>", "A"})),
            (Texts{"10ab", "10cd"}));
}

TEST_F(RowsTest, SpecialTokensInTextAreOrdinaryText) {
  // <, s and > one by one: 4 and 5 are the ids of the brackets.
  EXPECT_EQ(letters(load("a.txt", "<s>b", {.sequence_length = 5})), Texts{"04s5b"});
  EXPECT_EQ(letters(load("a.jsonl", R"({"text": "<s>b"})", {.sequence_length = 9})), Texts{"04s5b"});
}

TEST_F(RowsTest, TooShortAText) {
  EXPECT_EQ(error_of([&] { load("a.txt", "abcd", {.sequence_length = 6}); }).kind(),
            ErrorKind::invalid_argument);
  EXPECT_EQ(error_of([&] { load("a.txt", "", {.sequence_length = 6}); }).kind(), ErrorKind::invalid_argument);
  EXPECT_EQ(error_of([&] { load("a.txt", "abcd", {.sequence_length = 1}); }).kind(),
            ErrorKind::invalid_argument);
}

TEST_F(RowsTest, FewerRowsThanAskedFor) {
  // 8 windows: half of 16 is accepted with a warning, less is refused unless allowed.
  EXPECT_EQ(load("a.txt", kAlphabet, {.sequence_length = 4, .samples = 16}).rows.size(), 8u);
  EXPECT_EQ(log_.warnings().size(), 1u);
  const Error error = error_of([&] { load("a.txt", kAlphabet, {.sequence_length = 4, .samples = 17}); });
  EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
  EXPECT_NE(std::string(error.what()).find("--allow-fewer"), std::string::npos) << error.what();
  const RowOptions allowed{.sequence_length = 4, .samples = 17, .allow_fewer = true};
  EXPECT_EQ(load("a.txt", kAlphabet, allowed).rows.size(), 8u);
  // A default that nobody asked for takes what there is.
  EXPECT_EQ(load("a.txt", kAlphabet, {.sequence_length = 4}).rows.size(), 8u);
  EXPECT_EQ(load("a.txt", kAlphabet, {.sequence_length = 4, .samples_default = 2}).rows.size(), 2u);
  EXPECT_EQ(load("a.txt", kAlphabet, {.sequence_length = 4, .samples_default = 0}).rows.size(), 8u);
}

TEST_F(RowsTest, ASeedChoosesReproducibly) {
  const std::string text = [] {
    std::string all;
    for (int i = 0; i < 40; ++i) all += kAlphabet;
    return all;
  }();
  const auto chosen = [&](std::optional<uint64_t> seed) {
    return letters(load("a.txt", text, {.sequence_length = 6, .samples = 12, .seed = seed}));
  };
  const Texts one = chosen(1);
  EXPECT_EQ(chosen(1), one);
  EXPECT_NE(chosen(2), one);
  EXPECT_NE(chosen(std::nullopt), one);
  // All of them, each once and in order, whatever the seed.
  const RowOptions all{.sequence_length = 4, .samples = 8, .seed = 7};
  EXPECT_EQ(letters(load("a.txt", kAlphabet, all)),
            letters(load("a.txt", kAlphabet, {.sequence_length = 4})));
}

TEST_F(RowsTest, JsonLines) {
  const std::string lines = R"({"text": "abc"}

{"messages": [{"role": "user", "content": "de"}, {"role": "assistant", "content": "f"}]}
{"text": "  \n"}
{"input_ids": [15, 16, 17]}
{"text": "abcdefghi", "other": 1}
{"input_ids": []})";
  const RowSet set = load("a.jsonl", lines, {.sequence_length = 5});
  // 3 is the line end that joins messages; ten tokens are cut into two rows of five.
  EXPECT_EQ(letters(set), (Texts{"0abc", "0de3f", "fgh", "0abcd", "efghi"}));
  EXPECT_EQ(set.blank, 3);
  EXPECT_EQ(set.split, 1);
  EXPECT_EQ(set.tokens, 22);
  EXPECT_EQ(set.asked, std::nullopt);
  ASSERT_EQ(log_.warnings().size(), 1u);
  EXPECT_NE(log_.warnings().begin()->first.find("no chat template"), std::string::npos);
  EXPECT_EQ(letters(load("a.jsonl", lines, {.sequence_length = 5, .samples = 2})), (Texts{"0abc", "0de3f"}));
  EXPECT_EQ(load("a.jsonl", lines, {.sequence_length = 5, .samples = 4, .seed = 3}).rows.size(), 4u);
}

TEST_F(RowsTest, ThePolicySaysWhatWasDone) {
  const auto policy = [&](const char* lines, const std::vector<std::string>& single) {
    const std::string whole = load("a.jsonl", lines, {.sequence_length = 9}, single).policy;
    return whole.substr(whole.find("split, ") + 7);
  };
  const char *text = R"({"text": "abc"})", *ids = R"({"input_ids": [11]})";
  const std::string both = str(text, "\n", ids);
  EXPECT_EQ(policy(text, {"<s>", "A", "</s>"}),
            "the tokenizer's template adds 2 token(s) to a text, from the start");
  EXPECT_EQ(policy(text, {"A"}), "the tokenizer's template adds nothing to a text, from the start");
  EXPECT_EQ(policy(ids, {"<s>", "A"}), "token ids as given, from the start");
  EXPECT_EQ(policy(both.c_str(), {"<s>", "A"}),
            "the tokenizer's template adds 1 token(s) to a text, token ids as given, from the start");
  const char* chat = R"({"messages": [{"content": "a"}]})";
  EXPECT_EQ(policy(chat, {"A"}),
            "the tokenizer's template adds nothing to a text, contents of messages joined, from the start");
  write_bytes(folder_.path() / "chat_template.jinja", "{{ messages[0].content }}");
  EXPECT_EQ(policy(chat, {"A"}), "messages rendered by the chat template, from the start");
}

TEST_F(RowsTest, ChatTemplateRendersMessages) {
  write_bytes(
      folder_.path() / "chat_template.jinja",
      "{{ bos_token }}{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}{{ strftime_now('') }}"
      "{% if messages | length > 2 %}{{ raise_exception('too long') }}{% endif %}");
  write_bytes(folder_.path() / "tokenizer_config.json", R"({"bos_token": "<s>"})");
  const std::string lines =
      R"({"messages": [{"role": "user", "content": "de"}, {"role": "bot", "content": "<s>"}]}
{"text": "<s>"}
{"messages": [{"role": "a"}]})";
  const RowSet set = load("a.jsonl", lines, {});
  // The template's special tokens are tokens (0), those of the text are not, and none is put in front. 2 is a blank, 3 a line end.
  ASSERT_EQ(set.rows.size(), 3u);
  EXPECT_EQ(letters(set.rows[0]), "0user2de3bot203");
  EXPECT_EQ(letters(set.rows[1]), "04s5");
  EXPECT_EQ(letters(set.rows[2]), "0a23");
  EXPECT_TRUE(log_.warnings().empty());
  const Error error = error_of([&] {
    load("a.jsonl", lines + R"(
{"messages": [{}, {}, {}]})",
         {});
  });
  for (const char* word : {"chat_template.jinja", "a.jsonl, line 4", "too long"})
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
}

TEST_F(RowsTest, JsonLinesSayWhereTheyAreWrong) {
  for (const char* line : {"[1]", "{\"text\": 3}", "{\"input_ids\": \"1\"}", "{\"input_ids\": [1.5]}", "{",
                           "{}", "{\"messages\": {}}", "{\"messages\": [{\"role\": \"user\"}]}"}) {
    const Error error = error_of([&] { load("a.jsonl", "{\"text\": \"a\"}\n" + std::string(line), {}); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << line;
    EXPECT_NE(std::string(error.what()).find("a.jsonl, line 2"), std::string::npos) << error.what();
  }
  EXPECT_EQ(error_of([&] { load("a.jsonl", "\n\n", {}); }).kind(), ErrorKind::invalid_argument);
}

at::Tensor matrix(const std::vector<std::vector<int64_t>>& rows, at::ScalarType type = at::kLong) {
  std::vector<at::Tensor> all;
  for (const auto& row : rows) {
    all.push_back(
        tensor::wrap(row.data(), {1, static_cast<int64_t>(row.size())}, at::kLong, nullptr).to(type).clone());
  }
  return tensor::cat(all, 0);
}

TEST_F(RowsTest, ReadyRowsAreTakenAsTheyAre) {
  for (const at::ScalarType type : {at::kLong, at::kInt, at::kShort}) {
    const fs::path path = save({{"input_ids", matrix({{11, 12, 13}, {14, 15, 16}}, type)}});
    EXPECT_EQ(letters(load_file(path, {.sequence_length = 2})), (Texts{"bcd", "efg"}));
    EXPECT_EQ(letters(load_file(path, {.sequence_length = 2, .samples = 1})), Texts{"bcd"});
  }
  // The default number of samples is for text only.
  EXPECT_EQ(load_file(save({{"input_ids", matrix({{1}, {2}, {3}})}}), {.samples_default = 2}).rows.size(),
            3u);
}

TEST_F(RowsTest, MasksAreCutOffAtBothEnds) {
  const at::Tensor ids =
      matrix({{11, 12, 13, 14}, {11, 12, 13, 14}, {11, 12, 13, 14}, {11, 12, 13, 14}, {11, 12, 13, 14}});
  const at::Tensor mask = matrix({{0, 0, 1, 1}, {1, 1, 1, 0}, {0, 0, 0, 0}, {1, 1, 1, 1}, {0, 1, 1, 0}});
  const ReadyRows ready = read_ready_rows(save({{"input_ids", ids}, {"attention_mask", mask}}));
  EXPECT_EQ(ready.length, 4);
  EXPECT_EQ(ready.begins, (std::vector<int64_t>{2, 0, 4, 0, 1}));
  EXPECT_EQ(ready.rows, (std::vector<TokenRow>{{13, 14}, {11, 12, 13}, {}, {11, 12, 13, 14}, {12, 13}}));
  const RowSet set = load_file(folder_.path() / "rows.safetensors", {});
  EXPECT_EQ(letters(set), (Texts{"de", "bcd", "bcde", "cd"}));
  EXPECT_EQ(set.blank, 1);
  EXPECT_EQ(set.tokens, 11);
}

TEST_F(RowsTest, RefusesOtherReadyRows) {
  const at::Tensor ids = matrix({{11, 12, 13}});
  const auto kind_of = [&](const std::map<std::string, at::Tensor>& tensors) {
    const fs::path path = save(tensors);
    return error_of([&] { load_file(path, {}); }).kind();
  };
  EXPECT_EQ(kind_of({{"input_ids", ids}, {"attention_mask", matrix({{1, 0, 1}})}}), ErrorKind::unsupported);
  EXPECT_EQ(kind_of({{"input_ids", ids}, {"attention_mask", matrix({{1, 1}})}}), ErrorKind::corrupt_data);
  // An additive mask would keep what it hides.
  EXPECT_EQ(kind_of({{"input_ids", ids}, {"attention_mask", matrix({{0, 0, -1}})}}), ErrorKind::corrupt_data);
  EXPECT_EQ(kind_of({{"input_ids", ids}, {"attention_mask", matrix({{0, 0, 0}})}}),
            ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of({{"input_ids", ids.to(at::kFloat)}}), ErrorKind::corrupt_data);
  EXPECT_EQ(kind_of({{"input_ids", ids[0].contiguous()}}), ErrorKind::corrupt_data);
  EXPECT_EQ(kind_of({{"ids", ids}}), ErrorKind::invalid_argument);
  EXPECT_EQ(error_of([&] { load("a.csv", "abc", {}); }).kind(), ErrorKind::invalid_argument);
  EXPECT_EQ(error_of([&] { load_file(folder_.path() / "none.txt", {}); }).kind(),
            ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace gramian
