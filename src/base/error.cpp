#include "base/error.h"

namespace gramian {
namespace {

std::string one_line(const std::string& where, const std::string& what, const std::string& hint) {
  std::string text = where.empty() ? what : where + ": " + what;
  if (!hint.empty()) text += "; " + hint;
  return text;
}

}  // namespace

Error::Error(ErrorKind kind, const std::string& where, const std::string& what, const std::string& hint)
    : std::runtime_error(one_line(where, what, hint)), kind_(kind), where_(where), hint_(hint) {}

int Error::exit_code() const noexcept {
  switch (kind_) {
    case ErrorKind::invalid_argument:
    case ErrorKind::unsupported:
    case ErrorKind::corrupt_data:
      return 2;
    case ErrorKind::unsound:
      return 3;
    case ErrorKind::interrupted:
      return 130;
    case ErrorKind::io:
    case ErrorKind::numerical:
    case ErrorKind::internal:
      break;
  }
  return 1;
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw Error(ErrorKind::internal, str(file, ":", line),
              str("bug: ", condition, message.empty() ? "" : ": ", message),
              "please report it with the command that led here");
}

}  // namespace gramian
