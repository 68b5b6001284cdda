// The program: parses a command line and runs its verb.
#pragma once

namespace gramian {
class Ranks;  // pipeline/ranks.h
}

namespace gramian::cli {

// Prints results on stdout and messages on stderr, takes over the signals that stop a job, and returns the exit code.
// `ranks`: the processes that `quantize` shares its job with; null: none. Only the one that writes prints.
int run(int argc, char** argv, Ranks* ranks = nullptr);

}  // namespace gramian::cli
