// LibTorch's OpenMP threads spin at every barrier. On a machine that others use too, a thread that lost its core lets the
// others spin for whole time slices: jobs were seen to take five times as long.
#pragma once

namespace gramian::cli {

// Starts this program again, with the same arguments, in an environment where OpenMP blocks after a short spin; its runtime
// reads that only when it is loaded. Does nothing where OMP_WAIT_POLICY or GOMP_SPINCOUNT say something already. Call it
// before anything is done.
void restart_with_blocking_openmp();

}  // namespace gramian::cli
