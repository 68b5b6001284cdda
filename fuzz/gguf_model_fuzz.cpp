// Any bytes as a model in a GGUF file: refused with gramian::Error, or a configuration, tensors that decode, and texts of a tokenizer
// that is read or refused.
#include <ATen/core/Tensor.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "formats/gguf/model_reader.h"
#include "formats/tokenizer.h"

namespace {

void read(const std::string& path) {
  const auto files = gramian::gguf::side_files(path);
  if (files.contains("tokenizer.json")) {
    const auto tokenizer = gramian::Tokenizer::parse(files.at("tokenizer.json"), "tokenizer.json");
    for (const char* text : {"a b", "AAbb It's 12 o'clock\n"}) {
      try {
        (void)tokenizer.decode(tokenizer.encode(text, {.add_special_tokens = true}));
      } catch (const gramian::Error& error) {
        if (error.kind() == gramian::ErrorKind::internal) std::abort();
      }
    }
  }
  for (const auto& [name, stored] : gramian::gguf::open_model(path).tensors) {
    if (stored.to_tensor().numel() != stored.values()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    read("/proc/self/fd/" + std::to_string(fd));
  } catch (const gramian::Error& error) {
    const gramian::ErrorKind kind = error.kind();
    if (kind != gramian::ErrorKind::corrupt_data && kind != gramian::ErrorKind::unsupported &&
        kind != gramian::ErrorKind::invalid_argument)
      std::abort();
  }
  ::close(fd);
  return 0;
}
