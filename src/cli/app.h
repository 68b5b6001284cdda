// The program: parses a command line and runs its verb.
#pragma once

namespace gramian {
class Ranks;  // pipeline/ranks.h
}

namespace gramian::cli {

// Prints results on stdout and messages on stderr, takes over the signals that stop a job, and returns the exit code.
// `ranks`: the processes that `quantize` shares its job with; null: none. Only the one that writes prints.
int run(int argc, char** argv, Ranks* ranks = nullptr);

// Ends the process with what was written, but without LibTorch's static destructors: they take longer than a small command. With a
// sanitizer it is std::exit, which looks for leaks.
[[noreturn]] void leave(int code);

}  // namespace gramian::cli
