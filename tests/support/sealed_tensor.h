// Makes a stored tensor unreadable, to show what never reads it.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "formats/checkpoint.h"

namespace gramian::testing_support {

// While it lives, reading any whole page of the tensor ends the process.
class SealedTensor {
 public:
  SealedTensor(const Checkpoint& checkpoint, const std::string& name) {
    const auto bytes = checkpoint.tensor(name).bytes;
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(bytes.data()), end = begin + bytes.size();
    begin_ = reinterpret_cast<std::byte*>((begin + page - 1) / page * page);
    size_ = end / page * page - reinterpret_cast<uintptr_t>(begin_);
    // Most of the tensor, so that whoever reads it meets a sealed page.
    EXPECT_GT(2 * size_, bytes.size()) << name << " is too small to be sealed";
    EXPECT_EQ(::mprotect(begin_, size_, PROT_NONE), 0);
    EXPECT_FALSE(readable());
  }
  ~SealedTensor() {
    ::mprotect(begin_, size_, PROT_READ);
    EXPECT_TRUE(readable());
  }
  SealedTensor(const SealedTensor&) = delete;
  SealedTensor& operator=(const SealedTensor&) = delete;

 private:
  // Asks the kernel, which answers where a load would end the process.
  bool readable() const {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe(ends), 0);
    const bool read = ::write(ends[1], begin_, 1) == 1;
    EXPECT_TRUE(read || errno == EFAULT);
    ::close(ends[0]);
    ::close(ends[1]);
    return read;
  }
  std::byte* begin_ = nullptr;
  size_t size_ = 0;
};

}  // namespace gramian::testing_support
