// Which instruction set a kernel may use. A level includes the ones before it.
#pragma once

#include <string>
#include <string_view>

namespace gramian {

enum class CpuLevel {
  reference,    // the scalar text every variant is tested against
  avx2,         // AVX2, FMA and F16C
  avx512,       // AVX-512 F, BW, DQ, VL
  avx512_vnni,  // and VNNI: int8 dot products
  avx512_bf16,  // and BF16 dot products
};

// "reference", "avx2", "avx512", "avx512_vnni" or "avx512_bf16".
std::string_view name(CpuLevel level);
// The highest level this CPU (and its operating system) has.
CpuLevel detected_cpu_level();
// What `forced` (a name; empty for none) asks for. Throws invalid_argument when it is unknown or the CPU lacks it.
CpuLevel choose_cpu_level(const std::string& forced);
// choose_cpu_level($GRAMIAN_CPU_LEVEL), decided at the first call.
CpuLevel cpu_level();

}  // namespace gramian
