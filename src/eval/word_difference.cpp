#include "eval/word_difference.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gramian {
namespace {

constexpr std::string_view kWhite = " \t\n\r\f\v";

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t begin = text.find_first_not_of(kWhite); begin < text.size();
       begin = text.find_first_not_of(kWhite, begin)) {
    const size_t end = std::min(text.find_first_of(kWhite, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

struct Match {
  size_t left, right;  // places of one word in both texts
};

// A longest common subsequence of the words from `first` on, in order.
std::vector<Match> common_words(const std::vector<std::string_view>& left,
                                const std::vector<std::string_view>& right, size_t first) {
  const size_t rows = left.size() - first, columns = right.size() - first;
  constexpr size_t kPairsMax = size_t{1} << 22;
  if (rows == 0 || columns == 0 || rows > kPairsMax / columns) return {};
  // longest[i][j]: of the words from first + i and first + j on.
  std::vector<uint32_t> longest((rows + 1) * (columns + 1), 0);
  const auto at = [&](size_t i, size_t j) -> uint32_t& { return longest[i * (columns + 1) + j]; };
  for (size_t i = rows; i-- > 0;) {
    for (size_t j = columns; j-- > 0;) {
      at(i, j) =
          left[first + i] == right[first + j] ? at(i + 1, j + 1) + 1 : std::max(at(i + 1, j), at(i, j + 1));
    }
  }
  std::vector<Match> matches;
  for (size_t i = 0, j = 0; i < rows && j < columns;) {
    if (left[first + i] == right[first + j]) {
      matches.push_back({first + i++, first + j++});
    } else if (at(i + 1, j) >= at(i, j + 1)) {
      ++i;
    } else {
      ++j;
    }
  }
  return matches;
}

std::vector<TextPiece> pieces_of(std::string_view text, const std::vector<std::string_view>& words,
                                 const std::vector<bool>& shared) {
  std::vector<TextPiece> pieces;
  const auto append = [&](std::string_view part, bool differs) {
    if (part.empty()) return;
    if (pieces.empty() || pieces.back().differs != differs) pieces.push_back({"", differs});
    pieces.back().text += part;
  };
  size_t reached = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto begin = static_cast<size_t>(words[i].data() - text.data());
    const bool between_different = i > 0 && !shared[i - 1] && !shared[i];
    append(text.substr(reached, begin - reached), between_different);
    append(words[i], !shared[i]);
    reached = begin + words[i].size();
  }
  append(text.substr(reached), false);
  return pieces;
}

}  // namespace

std::pair<std::vector<TextPiece>, std::vector<TextPiece>> word_difference(std::string_view left,
                                                                          std::string_view right) {
  const std::vector<std::string_view> left_words = words_of(left), right_words = words_of(right);
  const auto parting =
      std::mismatch(left_words.begin(), left_words.end(), right_words.begin(), right_words.end());
  const auto first = static_cast<size_t>(parting.first - left_words.begin());
  std::vector<bool> left_shared(left_words.size(), false), right_shared(right_words.size(), false);
  std::fill_n(left_shared.begin(), first, true);
  std::fill_n(right_shared.begin(), first, true);

  constexpr size_t kRunMin = 3;
  const std::vector<Match> matches = common_words(left_words, right_words, first);
  for (size_t begin = 0; begin < matches.size();) {
    size_t end = begin + 1;
    while (end < matches.size() && matches[end].left == matches[end - 1].left + 1 &&
           matches[end].right == matches[end - 1].right + 1) {
      ++end;
    }
    for (size_t i = begin; i < end && end - begin >= kRunMin; ++i) {
      left_shared[matches[i].left] = true;
      right_shared[matches[i].right] = true;
    }
    begin = end;
  }
  return {pieces_of(left, left_words, left_shared), pieces_of(right, right_words, right_shared)};
}

}  // namespace gramian
