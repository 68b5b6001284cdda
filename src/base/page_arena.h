// Memory for weights that every token reads: large pages, which many small blocks share. With pages of 4 KiB the look-up of
// addresses, not the memory, bounds a stream (on a virtual machine at half of its bandwidth).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace gramian {

class PageArena {
 public:
  // Zeroed bytes, aligned to 64, which live as long as the pointer. Throws std::bad_alloc. Thread-safe.
  std::shared_ptr<std::byte[]> take(int64_t bytes);

 private:
  std::mutex mutex_;
  std::shared_ptr<std::byte[]> chunk_;  // what the next blocks come from
  int64_t used_ = 0, size_ = 0;
};

}  // namespace gramian
