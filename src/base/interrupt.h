// Ctrl-C, SIGTERM and a closed terminal stop a job between two steps, so that it cleans up after itself; a second signal kills it at once.
#pragma once

namespace gramian {

// Replaces the handlers of SIGINT, SIGTERM and SIGHUP for the whole process. For programs, not for libraries.
void catch_interrupts();
// Throws Error(interrupted) once a signal has arrived. Long loops call it per step.
void throw_if_interrupted();

}  // namespace gramian
