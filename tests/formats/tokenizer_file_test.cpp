// Damaged files, and kinds of tokenizers that are not built.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "formats/tokenizer_fixture.h"

namespace gramian {
namespace {

using namespace testing_support;

struct Case {
  std::string expected;  // part of the message
  std::function<void(Json&)> damage;
};

void expect_refused(ErrorKind kind, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    Json json = small_tokenizer({"a b", "ab c"});
    c.damage(json);
    const std::string error = load_error(json, kind);
    EXPECT_NE(error.find(c.expected), std::string::npos) << "expected " << c.expected << ", found: " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(TokenizerFileTest, DamagedFilesAreCorrupt) {
  expect_refused(
      ErrorKind::corrupt_data,
      {{"expected an object, found array", [](Json& j) { j = Json::array(); }},
       {"model: expected an object", [](Json& j) { j.erase("model"); }},
       {"model.type: expected a string", [](Json& j) { j["model"]["type"] = 3; }},
       {"model.vocab: expected an object", [](Json& j) { j["model"].erase("vocab"); }},
       {"model.vocab.a: expected an id", [](Json& j) { j["model"]["vocab"]["a"] = "97"; }},
       {"model.vocab.a: id -1", [](Json& j) { j["model"]["vocab"]["a"] = -1; }},
       {"model.vocab.a: id 2147483648", [](Json& j) { j["model"]["vocab"]["a"] = int64_t{1} << 31; }},
       {"model.vocab.a: expected an id", [](Json& j) { j["model"]["vocab"]["a"] = 1.5; }},
       {"id 98 is given to two words", [](Json& j) { j["model"]["vocab"]["a"] = 98; }},
       {"model.merges: expected an array", [](Json& j) { j["model"].erase("merges"); }},
       {"model.merges[1]: \"q1\" is not in the vocabulary",
        [](Json& j) { j["model"]["merges"][1] = "q1 a"; }},
       {"model.merges[1]: \"ax\" is not in the vocabulary", [](Json& j) { j["model"]["merges"][1] = "a x"; }},
       {"model.merges[0]: expected two words", [](Json& j) { j["model"]["merges"][0] = "ab"; }},
       {"model.merges[0]: expected two words", [](Json& j) { j["model"]["merges"][0] = "a b c"; }},
       {"model.merges[0]: expected \"left right\"",
        [](Json& j) { j["model"]["merges"][0] = {"a", "b", "c"}; }},
       {"model.merges[0]: expected \"left right\"", [](Json& j) { j["model"]["merges"][0] = 7; }},
       {"model.unk_token: \"<unk>\" is not in the vocabulary",
        [](Json& j) { j["model"]["unk_token"] = "<unk>"; }},
       {"model.ignore_merges: expected true or false", [](Json& j) { j["model"]["ignore_merges"] = "yes"; }},
       {"added_tokens: expected an array", [](Json& j) { j["added_tokens"] = 1; }},
       {"added_tokens[0].id", [](Json& j) { j["added_tokens"] = {added_token(-5, "<a>")}; }},
       {"added_tokens[0].content", [](Json& j) { j["added_tokens"] = {{{"id", 300}}}; }},
       {"normalizer.type", [](Json& j) { j["normalizer"] = Json::object(); }},
       {"normalizer: expected an object", [](Json& j) { j["normalizer"] = "NFC"; }},
       {"is no split behavior",
        [](Json& j) {
          j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Sideways"}};
        }},
       {"pre_tokenizer.pattern",
        [](Json& j) { j["pre_tokenizer"] = {{"type", "Split"}, {"behavior", "Isolated"}}; }},
       {"is not among special_tokens",
        [](Json& j) {
          j["post_processor"] = Json::parse(
              R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}})");
        }},
       {"has no place for the text",
        [](Json& j) { j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::array()}}; }}});
}

TEST(TokenizerFileTest, KindsNotBuiltAreNamed) {
  expect_refused(
      ErrorKind::unsupported,
      {{"model type \"Unigram\"", [](Json& j) { j["model"]["type"] = "Unigram"; }},
       {"model type \"WordPiece\"", [](Json& j) { j["model"]["type"] = "WordPiece"; }},
       {"a model without a type", [](Json& j) { j["model"].erase("type"); }},
       {"normalizer type \"Lowercase\"", [](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }},
       {"pre_tokenizer type \"Whitespace\"", [](Json& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; }},
       {"post_processor type \"BertProcessing\"",
        [](Json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; }},
       {"decoder type \"WordPiece\"", [](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }},
       {"without a decoder", [](Json& j) { j["decoder"] = nullptr; }},
       {"model.dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }},
       {"model.end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
       {"version \"2.0\"", [](Json& j) { j["version"] = "2.0"; }},
       {"behind ByteLevel",
        [](Json& j) {
          const Json step = {{"type", "ByteLevel"}};
          j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {step, step}}};
        }},
       {"nested deeper", [](Json& j) {
          for (int i = 0; i < 20; ++i) {
            j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({j["pre_tokenizer"]})}};
          }
        }}});
}

TEST(TokenizerFileTest, BrokenJsonNamesTheLine) {
  EXPECT_NE(load_error(std::string("{\n\"model\": ]}"), ErrorKind::corrupt_data).find("line 2"),
            std::string::npos);
  load_error(std::string(), ErrorKind::corrupt_data);
  load_error(std::string("{\"a\": \"\xFF\"}"), ErrorKind::corrupt_data);
  const std::string twice =
      load_error(std::string(R"({"model": {"vocab": {"a": 1, "a": 2}}})"), ErrorKind::corrupt_data);
  EXPECT_NE(twice.find("duplicate"), std::string::npos) << twice;
}

TEST(TokenizerFileTest, AMissingFileIsTheCallersMistake) {
  try {
    Tokenizer tokenizer(std::filesystem::path(testing::TempDir()) / "no such folder" / "tokenizer.json");
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
  }
}

TEST(TokenizerFileTest, EveryTruncationIsAnError) {
  Json json = small_tokenizer({"a b"});
  const std::string text = json.dump();
  for (size_t length = 0; length < text.size(); length += 97)
    load_error(text.substr(0, length), ErrorKind::corrupt_data);
}

TEST(TokenizerFileTest, BytesWithoutEntry) {
  Json json = small_tokenizer();
  json["model"]["vocab"].erase("a");
  try {
    load(json).encode("xay");
    ADD_FAILURE() << "encoded";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("<0x61>"), std::string::npos) << error.what();
  }
  json["model"]["vocab"]["<unk>"] = 300;
  json["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(load(json).encode("xaay"), (Ids{'x', 300, 300, 'y'}));
  json["model"]["fuse_unk"] = true;
  EXPECT_EQ(load(json).encode("xaay"), (Ids{'x', 300, 'y'}));
}

}  // namespace
}  // namespace gramian
