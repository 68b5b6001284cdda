#include "runtime/stop_text.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

namespace gramian {
namespace {

using Texts = std::vector<std::string>;

// What each push gives, and last what finish() gives.
Texts parts(const Texts& stops, const Texts& pushes) {
  StopText stop(stops);
  Texts all;
  for (const std::string& part : pushes) all.push_back(stop.push(part));
  all.push_back(stop.finish());
  return all;
}

TEST(StopText, HoldsOnlyWhatMayBeAStop) {
  EXPECT_EQ(parts({"END"}, {"some", " E", "N", "ding"}), (Texts{"some", " ", "", "ENding", ""}));
  EXPECT_EQ(parts({"END"}, {"some E", "N", "D more", "lost"}), (Texts{"some ", "", "", "", ""}));
  EXPECT_EQ(parts({"END"}, {"EN"}), (Texts{"", "EN"}));
  EXPECT_EQ(parts({"aab"}, {"a", "a", "a", "b"}), (Texts{"", "", "a", "", ""}));
  EXPECT_EQ(parts({}, {"a", "b"}), (Texts{"a", "b", ""}));
}

TEST(StopText, TheFirstCompleteOneCounts) {
  EXPECT_EQ(parts({"abcd", "c"}, {"xabcd"}), (Texts{"xab", ""}));
  EXPECT_EQ(parts({"c", "abc"}, {"xabc"}), (Texts{"x", ""}));
}

// Character by character: the text before the first stop text that its end completes, or nothing.
std::optional<std::string> before_stop(const Texts& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t length = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) length = std::max(length, stop.size());
    }
    if (length > 0) return text.substr(0, end - length);
  }
  return std::nullopt;
}

TEST(StopText, HoweverTheTextIsCut) {
  std::mt19937 random(1);
  const auto letters = [&](size_t length_max, size_t length_min) {
    std::string text(length_min + random() % (length_max - length_min + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  int stopped = 0;
  for (int i = 0; i < 3000; ++i) {
    Texts stops(1 + random() % 3);
    for (std::string& stop : stops) stop = letters(5, 2);
    const std::string text = letters(12, 0);
    StopText stop(stops);
    std::string found;
    for (size_t at = 0; at < text.size();) {
      const size_t count = 1 + random() % 4;
      found += stop.push(text.substr(at, count));
      at += count;
    }
    found += stop.finish();
    const std::optional<std::string> before = before_stop(stops, text);
    EXPECT_EQ(stop.stopped(), before.has_value()) << text;
    EXPECT_EQ(found, before.value_or(text)) << text << ", " << testing::PrintToString(stops);
    stopped += stop.stopped();
  }
  EXPECT_GT(stopped, 500);
  EXPECT_LT(stopped, 2500);
}

}  // namespace
}  // namespace gramian
