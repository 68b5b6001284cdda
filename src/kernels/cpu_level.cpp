#include "kernels/cpu_level.h"

#include <array>
#include <cstdlib>

#include "base/error.h"

namespace gramian {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"reference", "avx2", "avx512", "avx512_vnni",
                                                    "avx512_bf16"};

}  // namespace

std::string_view name(CpuLevel level) { return kNames[static_cast<size_t>(level)]; }

CpuLevel detected_cpu_level() {
#if defined(__x86_64__)
  // The builtin also asks XCR0 whether the operating system saves the wide registers.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return CpuLevel::reference;
#if !defined(__clang__)  // whose builtin does not know it
  if (!__builtin_cpu_supports("f16c")) return CpuLevel::reference;
#endif
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return CpuLevel::avx2;
  }
  if (!__builtin_cpu_supports("avx512vnni")) return CpuLevel::avx512;
  return __builtin_cpu_supports("avx512bf16") ? CpuLevel::avx512_bf16 : CpuLevel::avx512_vnni;
#else
  return CpuLevel::reference;
#endif
}

CpuLevel choose_cpu_level(const std::string& forced) {
  const CpuLevel detected = detected_cpu_level();
  if (forced.empty()) return detected;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (forced != kNames[i]) continue;
    const auto level = static_cast<CpuLevel>(i);
    if (level <= detected) return level;
    throw Error(ErrorKind::invalid_argument, "GRAMIAN_CPU_LEVEL",
                str("'", forced, "' asked for, but this CPU reaches only ", name(detected)));
  }
  throw Error(ErrorKind::invalid_argument, "GRAMIAN_CPU_LEVEL", str("unknown level '", forced, "'"),
              "use reference, avx2, avx512, avx512_vnni or avx512_bf16");
}

CpuLevel cpu_level() {
  static const CpuLevel level = [] {
    const char* forced = std::getenv("GRAMIAN_CPU_LEVEL");
    return choose_cpu_level(forced != nullptr ? forced : "");
  }();
  return level;
}

}  // namespace gramian
