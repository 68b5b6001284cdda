// What one core can multiply and add at most: the limit that benchmarks of kernels compare with.
#pragma once

#include "base/dtype.h"
#include "kernels/cpu_level.h"

namespace gramian {

// Floating-point operations a second (a multiply-add counts two) of a loop on registers alone with the instruction that
// `level` multiplies values of `type` with: bf16 dot products for bf16 where the level has them, else fp32 multiply-add.
// Measured now, on the calling thread's CPU time, in about ten milliseconds; 0 at the reference level.
double multiply_add_peak(CpuLevel level, DType type);

}  // namespace gramian
