// The one exception type of the project: what went wrong, where, and what the user can do.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace gramian {

enum class ErrorKind {
  invalid_argument,  // a flag, configuration or request that cannot be served
  unsupported,       // well formed, but not built
  corrupt_data,      // a file that contradicts itself or its format
  io,                // the operating system refused
  numerical,         // NaN, infinity, or a factorization that cannot succeed
  interrupted,       // the user stopped it
  unsound,           // a checkpoint in which `gramian verify` found problems
  internal,          // a bug of ours
};

// Concatenates its arguments as an ostream would print them.
template <class... Args>
std::string str(const Args&... args) {
  if constexpr (sizeof...(args) == 0) return {};
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

class Error : public std::runtime_error {
 public:
  // `where`: file, tensor or module (may be empty). `what`: expected and found. `hint`: the remedy (may be empty).
  Error(ErrorKind kind, const std::string& where, const std::string& what, const std::string& hint = "");
  ErrorKind kind() const noexcept { return kind_; }
  const std::string& where() const noexcept { return where_; }
  const std::string& hint() const noexcept { return hint_; }
  // 2 for input that the user can mend, 3 for unsound, 130 for an interrupt, 1 for everything else.
  int exit_code() const noexcept;

 private:
  ErrorKind kind_;
  std::string where_, hint_;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace gramian

// For bugs of ours only; user input and files throw Error with their own kind.
#define GRAMIAN_CHECK(condition, ...)                                                                       \
  do {                                                                                                      \
    if (!(condition)) ::gramian::check_failed(__FILE__, __LINE__, #condition, ::gramian::str(__VA_ARGS__)); \
  } while (false)
