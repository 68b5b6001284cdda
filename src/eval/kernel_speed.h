// The Gram and factor kernels beside LibTorch in the same process: speed, share of the core's peak, and error against
// float64. `gramian bench` and the benchmarks beside the kernels print what this measures.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/cpu_level.h"

namespace gramian {

struct KernelFigure {
  std::string name;
  DType dtype = DType::f32;
  int64_t columns = 0;  // K
  int64_t tokens = 0;   // T; of a factor, the rows that its matrix was summed over
  int threads = 1;
  CpuLevel level = CpuLevel::reference;
  double seconds = 0, torch_seconds = 0;  // the shortest of some repetitions, taken in turns
  double operations = 0;                  // floating-point: the triangle of XᵀX, 2/3 K³ of a factor
  double peak = 0;  // operations a second that one core reaches on registers; 0: unknown
  // With several threads, how much faster than one thread in turns with them; else 0.
  double scaling = 0;
  // Root mean square of ΔH_ij / √(H_ii H_jj), or of ΔU_ij / U_ii, against float64.
  double error = 0, torch_error = 0;

  double ratio() const { return torch_seconds / seconds; }
  double operations_per_second() const { return operations / seconds; }
  double peak_share() const { return operations_per_second() / (peak * threads); }
  // What the benchmarks beside the kernels print, by name.
  std::map<std::string, double> counters() const;
};

struct KernelCase {
  int64_t columns = 0;
  int64_t tokens = 0;  // gram only
  DType dtype = DType::f32;
  CpuLevel level = CpuLevel::reference;
  int threads = 1;
  // gram: columns with means 1 to 30 deviations off zero; factor: a quarter of the rank, with 0.005 of its mean diagonal
  // added. Else generated rows (eval/generated_rows.h), for a factor twice as many as columns.
  bool hard = false;
  int repeats = 1;
};

// XᵀX added to fp32, lower triangle, of f32 or bf16 rows; LibTorch: `addmm_` in fp32 after the widening copy that bf16 rows
// need. Sets LibTorch's threads. One thread is timed by its own CPU time, several by the clock on the wall.
KernelFigure measure_gram(const KernelCase& which);
// U with Uᵀ U = H⁻¹ in place; LibTorch: cholesky, cholesky_inverse, cholesky. Throws numerical when either does not factor.
KernelFigure measure_factor(const KernelCase& which);

// The shortest of `repeats` times of each task, taken in turns, on the clock that `threads` asks for.
std::vector<double> shortest_in_turns(const std::vector<std::function<void()>>& tasks, int repeats,
                                      int threads);

}  // namespace gramian
