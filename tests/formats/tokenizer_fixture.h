// A small byte-level tokenizer.json that tests change and write to a temporary file. The id of each byte's
// token is the byte itself, so ids read as characters; words of merges follow from 256 on.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/tokenizer.h"

namespace gramian::testing_support {

using Json = nlohmann::json;
using Ids = std::vector<int64_t>;

inline std::string utf8_below_800(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

// GPT-2's bytes_to_unicode().
inline std::vector<std::string> byte_characters() {
  std::vector<std::string> characters;
  int others = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    characters.push_back(utf8_below_800(printable ? byte : 256 + others++));
  }
  return characters;
}

inline Json added_token(int64_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", false}};
}

// `merges` in rank order, each "left right".
inline Json small_tokenizer(const std::vector<std::string>& merges = {}) {
  Json vocabulary = Json::object();
  int64_t next = 0;
  for (const std::string& character : byte_characters()) vocabulary[character] = next++;
  for (std::string word : merges) {
    word.erase(word.find(' '), 1);
    if (!vocabulary.contains(word)) vocabulary[word] = next++;
  }
  Json merge_list = Json::array();
  for (const std::string& merge : merges) merge_list.push_back(merge);
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merge_list}}}};
}

// The file's name is the test's, so tests can run side by side.
inline std::filesystem::path write_file(const std::string& text) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) /
                                     (std::string(test.test_suite_name()) + "." + test.name() + ".json");
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

inline Tokenizer load(const Json& json) { return Tokenizer(write_file(json.dump())); }

// Loads `text` and returns the error; fails when there is none.
inline std::string load_error(const std::string& text, ErrorKind kind) {
  try {
    Tokenizer tokenizer(write_file(text));
    ADD_FAILURE() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    return error.what();
  }
  return "";
}

inline std::string load_error(const Json& json, ErrorKind kind) { return load_error(json.dump(), kind); }

// The ids of `text` in a tokenizer whose tokens are single bytes.
inline Ids bytes_of(const std::string& text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

}  // namespace gramian::testing_support
