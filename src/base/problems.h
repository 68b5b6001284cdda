// Checks that do not depend on each other, so that the user hears of everything that is wrong at once.
#pragma once

#include <vector>

#include "base/error.h"

namespace gramian {

class Problems {
 public:
  // Runs `check` and keeps the Error that it throws, unless that is an interrupt or a bug. Returns whether there was none.
  template <class Check>
  bool check(const Check& check) {
    try {
      check();
      return true;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupted || error.kind() == ErrorKind::internal) throw;
      add(error);
      return false;
    }
  }
  // What another Problems threw is added one by one.
  void add(const Error& error);
  bool none() const noexcept { return errors_.empty(); }
  // Throws what was kept: a single error as it was, several as one that lists them. Its exit code is 2 when the user can
  // mend any of them.
  void refuse() const;

 private:
  std::vector<Error> errors_;
};

}  // namespace gramian
