// What one core can multiply and add, and what memory can deliver, at most: the limits that benchmarks of kernels compare with.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "base/parallel.h"
#include "kernels/cpu_level.h"

namespace gramian {

// Floating-point operations a second (a multiply-add counts two) of a loop on registers alone with the instruction that
// `level` multiplies values of `type` with: bf16 dot products for bf16 where the level has them, else fp32 multiply-add.
// Measured now, on the calling thread's CPU time, in about ten milliseconds; 0 at the reference level.
double multiply_add_peak(CpuLevel level, DType type);
// The same for int8 factors: dot products of VNNI where the level has them, else of int16 pairs.
double int8_peak(CpuLevel level);

// Bytes a second that the pool's threads read from `memory` together, each its part from front to end, best of `tries`.
double read_bandwidth(CpuLevel level, ThreadPool& pool, std::span<const std::byte> memory, int tries);

}  // namespace gramian
