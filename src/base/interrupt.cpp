#include "base/interrupt.h"

#include <csignal>

#include "base/error.h"

namespace gramian {
namespace {

volatile std::sig_atomic_t arrived = 0;

void remember(int signal) { arrived = signal; }

}  // namespace

void catch_interrupts() {
  struct sigaction action{};
  action.sa_handler = remember;
  // The default action returns after the first signal.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  // A closed terminal; nohup has it ignored.
  struct sigaction hangup{};
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
    ::sigaction(SIGHUP, &action, nullptr);
}

void throw_if_interrupted() {
  if (arrived == 0) return;
  throw Error(ErrorKind::interrupted, "", str("stopped by signal ", static_cast<int>(arrived)),
              "the output in work was removed");
}

}  // namespace gramian
