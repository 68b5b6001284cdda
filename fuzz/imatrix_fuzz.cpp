// Any bytes as an importance matrix of either form: refused with gramian::Error, or sums that are finite and not negative.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "formats/imatrix_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    const gramian::ImportanceMatrix matrix = gramian::read_importance("/proc/self/fd/" + std::to_string(fd));
    for (const auto& [name, sums] : matrix.weights) {
      if (sums.experts() < 1) std::abort();
      if (static_cast<size_t>(sums.experts() * sums.in_features()) != sums.sums.size()) std::abort();
      for (const float sum : sums.sums) {
        if (!std::isfinite(sum) || sum < 0) std::abort();
      }
      for (int64_t e = 0; e < sums.experts(); ++e) {
        if (sums.importance(e).size() != static_cast<size_t>(sums.in_features())) std::abort();
      }
    }
  } catch (const gramian::Error& error) {
    const gramian::ErrorKind kind = error.kind();
    if (kind != gramian::ErrorKind::corrupt_data && kind != gramian::ErrorKind::unsupported) std::abort();
  }
  ::close(fd);
  return 0;
}
