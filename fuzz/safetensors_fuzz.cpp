// Any bytes as a safetensors file: refused with gramian::Error, or tensors that lie inside the file.
#include <ATen/core/Tensor.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    const gramian::SafetensorsFile file("/proc/self/fd/" + std::to_string(fd));
    for (const auto& [name, stored] : file.tensors()) {
      const auto whole = stored.file->bytes();
      if (stored.bytes.data() < whole.data()) std::abort();
      if (stored.bytes.data() + stored.bytes.size() > whole.data() + whole.size()) std::abort();
      if (stored.to_tensor().clone().nbytes() != stored.bytes.size()) std::abort();
    }
  } catch (const gramian::Error& error) {
    if (error.kind() != gramian::ErrorKind::corrupt_data) std::abort();
  }
  ::close(fd);
  return 0;
}
