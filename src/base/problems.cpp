#include "base/problems.h"

#include <algorithm>
#include <string>

namespace gramian {
namespace {

// A file with thousands of faults is one that was meant for something else.
constexpr size_t kShownMax = 50;

std::string listed(const std::vector<Error>& errors) {
  std::string text = str(errors.size(), " problems:");
  for (size_t i = 0; i < std::min(errors.size(), kShownMax); ++i) {
    text += "\n- ";
    for (const char* c = errors[i].what(); *c != '\0'; ++c)
      text += *c == '\n' ? std::string("\n  ") : std::string(1, *c);
  }
  if (errors.size() > kShownMax) text += str("\n- and ", errors.size() - kShownMax, " more");
  return text;
}

ErrorKind kind_of(const std::vector<Error>& errors) {
  const auto mendable =
      std::find_if(errors.begin(), errors.end(), [](const Error& error) { return error.exit_code() == 2; });
  return (mendable == errors.end() ? errors.begin() : mendable)->kind();
}

class Several : public Error {
 public:
  explicit Several(std::vector<Error> errors)
      : Error(kind_of(errors), "", listed(errors)), parts(std::move(errors)) {}
  std::vector<Error> parts;
};

}  // namespace

void Problems::add(const Error& error) {
  if (const auto* several = dynamic_cast<const Several*>(&error)) {
    errors_.insert(errors_.end(), several->parts.begin(), several->parts.end());
  } else {
    errors_.push_back(error);
  }
}

void Problems::refuse() const {
  if (errors_.size() == 1) throw errors_.front();
  if (!errors_.empty()) throw Several(errors_);
}

}  // namespace gramian
