#include "base/page_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "base/error.h"

namespace gramian {
namespace {

constexpr int64_t kPage = int64_t{2} << 20;
constexpr int64_t kChunk = 32 * kPage;

int64_t rounded_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// A mapping of whole large pages; only what is touched counts as resident.
std::shared_ptr<std::byte[]> map_pages(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes + kPage);
  void* all = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) throw std::bad_alloc();
  auto* first =
      reinterpret_cast<std::byte*>(rounded_up(static_cast<int64_t>(reinterpret_cast<intptr_t>(all)), kPage));
#ifdef MADV_HUGEPAGE
  ::madvise(first, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a wish: without it small pages serve
#endif
  return {first, [all, size](std::byte*) { ::munmap(all, size); }};
}

}  // namespace

std::shared_ptr<std::byte[]> PageArena::take(int64_t bytes) {
  GRAMIAN_CHECK(bytes >= 0, bytes);
  const int64_t needed = rounded_up(std::max(bytes, int64_t{1}), 64);
  const std::lock_guard lock(mutex_);
  if (used_ + needed > size_) {
    const int64_t size = std::max(rounded_up(needed, kPage), kChunk);
    chunk_ = map_pages(size);
    size_ = size;
    used_ = 0;
  }
  std::shared_ptr<std::byte[]> block(chunk_, chunk_.get() + used_);
  used_ += needed;
  return block;
}

}  // namespace gramian
