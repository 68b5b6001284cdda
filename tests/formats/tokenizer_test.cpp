#include "formats/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "formats/tokenizer_fixture.h"

namespace gramian {
namespace {

using namespace std::string_literals;
using namespace testing_support;

TEST(TokenizerTest, EveryByteIsItsToken) {
  const Tokenizer tokenizer = load(small_tokenizer());
  const std::string text = "a \n\t\0\x7F\xC3\xA9 \xE6\xA8\xA1\xF0\x9F\x98\x80"s;
  EXPECT_EQ(tokenizer.encode(text), bytes_of(text));
  EXPECT_EQ(tokenizer.decode(bytes_of(text)), text);
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.decode({}), "");
  EXPECT_EQ(tokenizer.vocab_size(), 256);
}

TEST(TokenizerTest, LowestRankFirstThenLeftmost) {
  const Tokenizer tokenizer = load(small_tokenizer({"a a", "b c", "a b"}));
  EXPECT_EQ(tokenizer.encode("aaa"), (Ids{256, 'a'}));
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{'a', 257}));
  EXPECT_EQ(tokenizer.encode("aab"), (Ids{256, 'b'}));
}

TEST(TokenizerTest, MergesAsPairsReadTheSame) {
  Json json = small_tokenizer({"a b", "ab c"});
  json["model"]["merges"] = Json::parse(R"([["a", "b"], ["ab", "c"]])");
  EXPECT_EQ(load(json).encode("abcab"), (Ids{257, 256}));
}

TEST(TokenizerTest, IgnoreMergesTakesWholePieces) {
  Json json = small_tokenizer({"a b"});
  json["model"]["vocab"]["xyz"] = 300;
  EXPECT_EQ(load(json).encode("xyz"), bytes_of("xyz"));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(json).encode("xyz"), Ids{300});
  EXPECT_EQ(load(json).encode("xyzab"), (Ids{'x', 'y', 'z', 256}));
}

// The textbook algorithm: again and again the leftmost pair of lowest rank.
std::vector<std::string> merge_naively(const std::string& text, const std::vector<std::string>& merges) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  for (;;) {
    size_t best_rank = merges.size(), best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto rank = static_cast<size_t>(
          std::find(merges.begin(), merges.end(), symbols[i] + " " + symbols[i + 1]) - merges.begin());
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(TokenizerTest, PiecesOfEveryLengthMergeLikeTheTextbook) {
  const std::vector<std::string> merges{"b a", "a a",   "a b",   "ab ab", "aa b",
                                        "c c", "ba ba", "cc cc", "aab ab"};
  const Json json = small_tokenizer(merges);
  const Tokenizer tokenizer = load(json);
  constexpr unsigned kSeed = 20240611;
  std::mt19937 random(kSeed);
  for (size_t length = 1; length < 200; ++length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text.push_back(static_cast<char>('a' + random() % 3));
    Ids expected;
    for (const std::string& symbol : merge_naively(text, merges)) {
      expected.push_back(json["model"]["vocab"][symbol].get<int64_t>());
    }
    ASSERT_EQ(tokenizer.encode(text), expected) << text << ", seed " << kSeed;
  }
}

TEST(TokenizerTest, MegabyteWithoutABlank) {
  Json json = small_tokenizer({"a a", "aa aa"});
  json["pre_tokenizer"]["use_regex"] = true;
  const Tokenizer tokenizer = load(json);
  constexpr size_t kLength = 1 << 20;
  EXPECT_EQ(tokenizer.encode(std::string(kLength, 'a')), Ids(kLength / 4, 257));
  EXPECT_EQ(tokenizer.encode(std::string(kLength, ' ')), Ids(kLength, ' '));
  EXPECT_EQ(tokenizer.encode(std::string(kLength, '!')), Ids(kLength, '!'));
}

TEST(TokenizerTest, ThreadsEncodeAlike) {
  const Tokenizer tokenizer = load(small_tokenizer({"a b", "ab c"}));
  const std::string text = "abc ab a b c abcabc";
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) result = tokenizer.encode(text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

TEST(TokenizerTest, InvalidTextNamesTheOffset) {
  const Tokenizer tokenizer = load(small_tokenizer());
  const std::map<std::string, int> cases{{"\x80", 0},         {"ab\xC3", 2},    {"0123456789\xFFz", 10},
                                         {"\xED\xA0\x80", 0}, {"x\xC0\xAF", 1}, {"\xF4\x90\x80\x80", 0}};
  for (const auto& [text, offset] : cases) {
    try {
      tokenizer.encode(text);
      ADD_FAILURE() << "accepted " << testing::PrintToString(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("at byte " + std::to_string(offset) + ";"), std::string::npos)
          << error.what();
    }
  }
}

TEST(TokenizerTest, DecodeReplacesEachMaximalBadPart) {
  const Tokenizer tokenizer = load(small_tokenizer());
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(tokenizer.decode({'a', 0xE6, 0xA8, 'b'}), "a" + bad + "b");
  EXPECT_EQ(tokenizer.decode({0x80, 0x80}), bad + bad);
  EXPECT_EQ(tokenizer.decode({0xF0, 0x9F, 0x98}), bad);
  EXPECT_EQ(tokenizer.decode({0xE0, 0x80}), bad + bad);
}

TEST(TokenizerTest, DecodeRefusesIdsWithoutToken) {
  Json json = small_tokenizer();
  json["model"]["vocab"]["xyz"] = 2'000'000'000;
  const Tokenizer tokenizer = load(json);
  EXPECT_EQ(tokenizer.vocab_size(), 2'000'000'001);
  EXPECT_EQ(tokenizer.decode({2'000'000'000}), "xyz");
  for (const int64_t id : {int64_t{-1}, int64_t{256}, int64_t{1'999'999'999}, int64_t{2'000'000'001},
                           int64_t{1} << 32, int64_t{1} << 62}) {
    try {
      tokenizer.decode({'a', id});
      ADD_FAILURE() << "decoded " << id;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(std::to_string(id)), std::string::npos) << error.what();
    }
  }
}

TEST(TokenizerTest, TemplateAddsSpecialTokens) {
  Json json = small_tokenizer();
  json["added_tokens"] = {added_token(300, "<s>"), added_token(301, "</s>")};
  json["added_tokens"][0]["special"] = json["added_tokens"][1]["special"] = true;
  json["post_processor"] = Json::parse(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                  {"SpecialToken": {"id": "end", "type_id": 0}}],
       "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [300], "tokens": ["<s>"]},
                                      "end": {"id": "end", "ids": [301, 301], "tokens": ["</s>", "</s>"]}}}]})");
  const Tokenizer tokenizer = load(json);
  EXPECT_EQ(tokenizer.encode("ab"), bytes_of("ab"));
  const Ids ids = tokenizer.encode("ab", {.add_special_tokens = true});
  EXPECT_EQ(ids, (Ids{300, 'a', 'b', 301, 301}));
  EXPECT_EQ(tokenizer.encode("", {.add_special_tokens = true}), (Ids{300, 301, 301}));
  EXPECT_EQ(tokenizer.decode(ids), "<s>ab</s></s>");
  EXPECT_EQ(tokenizer.decode(ids, /*skip_special=*/true), "ab");
  json["post_processor"]["processors"][1]["special_tokens"]["<s>"]["ids"] = {299};
  EXPECT_NE(load_error(json, ErrorKind::corrupt_data).find("299"), std::string::npos);
}

TEST(TokenizerTest, SurfaceFormsAreComposed) {
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "NFC"}};
  // e + acute, then q + dot above + dot below in the wrong order, then the Jamo of a Hangul syllable
  EXPECT_EQ(load(json).encode("e\u0301 q\u0307\u0323 \u1100\u1161\u11A8"),
            bytes_of("\u00E9 q\u0323\u0307 \uAC01"));
  json["normalizer"] =
      Json::parse(R"({"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "NFC"}]})");
  EXPECT_EQ(load(json).encode("\uFB01 \u00E9"), bytes_of("fi \u00E9"));
}

// A long run of marks in the wrong order must not take quadratic time.
TEST(TokenizerTest, LongRunOfMarks) {
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "NFD"}};
  std::string text = "e", sorted = "e";
  constexpr int kPairs = 200'000;
  for (int i = 0; i < kPairs; ++i) text += "\u0301\u0323";
  for (int i = 0; i < kPairs; ++i) sorted += "\u0323";
  for (int i = 0; i < kPairs; ++i) sorted += "\u0301";
  EXPECT_EQ(load(json).encode(text), bytes_of(sorted));
}

TEST(TokenizerTest, BundledModel) {
  const std::filesystem::path path = "models/tinystories/tokenizer.json";
  ASSERT_TRUE(std::filesystem::exists(path)) << "run from the root of the source tree";
  const Tokenizer tokenizer(path);
  const std::string text =
      "Once upon a time, there was a little girl. It's 1234 o'clock!\n\n  She said: \"Hi\" \u00E9\n";
  const Ids ids = tokenizer.encode(text);
  EXPECT_LT(ids.size(), text.size() / 2);
  EXPECT_LT(*std::max_element(ids.begin(), ids.end()), tokenizer.vocab_size());
  EXPECT_EQ(tokenizer.decode(ids), text);
}

}  // namespace
}  // namespace gramian
