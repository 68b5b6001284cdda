// Where two continuations of one prompt part company, word by word.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gramian {

struct TextPiece {
  std::string text;
  bool differs = false;  // not shared with the other text
};

// Both texts in pieces that concatenate to them. Shared are a longest common beginning, and further on runs of at least
// three words of a longest common subsequence: single words that two stories happen to share say nothing. White space
// between shared and different words belongs to the shared ones. Beyond 2^22 pairs of words after the common beginning,
// all of the rest differs.
std::pair<std::vector<TextPiece>, std::vector<TextPiece>> word_difference(std::string_view left,
                                                                          std::string_view right);

}  // namespace gramian
