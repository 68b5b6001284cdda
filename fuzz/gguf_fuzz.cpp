// Any bytes as a GGUF file: refused with gramian::Error, or tensors that lie inside the file and decode, and a header that is read again
// when it is written.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/gguf/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    const gramian::gguf::File file("/proc/self/fd/" + std::to_string(fd));
    const auto whole = file.mapping()->bytes();
    std::vector<gramian::gguf::TensorType> types;
    for (const gramian::gguf::Tensor& tensor : file.tensors()) {
      if (tensor.data.data() < whole.data()) std::abort();
      if (tensor.data.data() + tensor.data.size() > whole.data() + whole.size()) std::abort();
      if (tensor.data.size() != tensor.bytes()) std::abort();
      std::vector<float> values(static_cast<size_t>(tensor.rows() * tensor.columns()));
      tensor.decode(values.data());
      types.push_back(tensor);
    }
    if (gramian::gguf::lay_out(file.metadata(), types).head.empty()) std::abort();
  } catch (const gramian::Error& error) {
    if (error.kind() != gramian::ErrorKind::corrupt_data && error.kind() != gramian::ErrorKind::unsupported)
      std::abort();
  }
  ::close(fd);
  return 0;
}
