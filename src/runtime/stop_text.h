// Ends a stream of text at the first stop text that is complete (of several at once the longest), and leaves that out.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gramian {

class StopText {
 public:
  // `stops` are not empty texts.
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the next part; returns the text that belongs to no stop text, whatever follows. Once stopped() it returns nothing.
  std::string push(std::string_view part);
  // What was held back because a stop text might have begun there; nothing once stopped().
  std::string finish();
  bool stopped() const noexcept { return stopped_; }

 private:
  size_t first_doubt() const;
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace gramian
