#include "tensor/activations.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace gramian::tensor {
namespace fs = std::filesystem;

namespace {
constexpr size_t kPage = 4096;
}

// One tensor's memory: whole pages, so that giving them back touches nobody else's.
struct ActivationBlock {
  std::shared_ptr<ActivationStore::State> state;
  size_t owner = 0;
  void* data = nullptr;
  size_t bytes = 0;
  int64_t offset = -1;  // in the file; -1: none yet
  bool parked = false;
};

struct ActivationStore::State {
  mutable std::mutex mutex;
  std::vector<std::set<ActivationBlock*>> blocks;  // per owner
  std::vector<int64_t> live;                       // per owner
  int64_t resident = 0;
  int64_t peak = 0;
  int64_t written = 0;
  fs::path folder;
  int file = -1;
  int64_t file_end = 0;
  std::multimap<size_t, int64_t> free_extents;  // size -> offset, of blocks that are gone

  ~State() {
    if (file >= 0) ::close(file);
  }
  [[noreturn]] void fail(const char* what) const {
    throw Error(ErrorKind::io, folder.string(), str(what, ": ", std::strerror(errno)),
                "name a folder on a disk with more room, or allow more memory");
  }
  // Blocks of one size come back all the time, so an extent is used again only by its own size.
  int64_t extent(size_t bytes) {
    if (const auto found = free_extents.find(bytes); found != free_extents.end()) {
      const int64_t offset = found->second;
      free_extents.erase(found);
      return offset;
    }
    file_end += static_cast<int64_t>(bytes);
    return file_end - static_cast<int64_t>(bytes);
  }
  void open_file() {
    if (file >= 0) return;
    GRAMIAN_CHECK(!folder.empty(), "activations are parked without a folder");
    file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0) return;
    // Some file systems know no nameless files.
    std::string name = (folder / ".activations-XXXXXX").string();
    file = ::mkostemp(name.data(), O_CLOEXEC);
    if (file < 0) fail("cannot make a file for waiting activations");
    ::unlink(name.c_str());
  }
};

namespace {

// Every block by its address.
class Registry {
 public:
  static Registry& all() {
    static auto* registry = new Registry;  // outlives every tensor
    return *registry;
  }
  void add(void* data, std::unique_ptr<ActivationBlock> block) {
    const std::lock_guard lock(mutex_);
    blocks_[data] = std::move(block);
  }
  std::unique_ptr<ActivationBlock> take(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data);
    if (found == blocks_.end()) return nullptr;
    std::unique_ptr<ActivationBlock> block = std::move(found->second);
    blocks_.erase(found);
    return block;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, std::unique_ptr<ActivationBlock>> blocks_;
};

}  // namespace

// Stands before LibTorch's own allocator and takes what a scope asks for.
class ActivationAllocator final : public c10::Allocator {
 public:
  explicit ActivationAllocator(c10::Allocator* plain) : plain_(plain) {
    plain_deleter_ = plain->raw_deleter();
  }

  static thread_local ActivationStore* store;
  static thread_local size_t owner;

  c10::DataPtr allocate(size_t bytes) override {
    if (store == nullptr || bytes < kPage) return plain_->allocate(bytes);
    const std::shared_ptr<ActivationStore::State>& state = store->state_;
    auto block = std::make_unique<ActivationBlock>();
    block->state = state;
    block->owner = owner;
    block->bytes = (bytes + kPage - 1) / kPage * kPage;
    if (::posix_memalign(&block->data, kPage, block->bytes) != 0) throw std::bad_alloc();
    const std::lock_guard lock(state->mutex);
    state->blocks[owner].insert(block.get());
    state->live[owner] += static_cast<int64_t>(block->bytes);
    state->resident += static_cast<int64_t>(block->bytes);
    state->peak = std::max(state->peak, state->resident);
    void* data = block->data;
    Registry::all().add(data, std::move(block));
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  static void install() {
    static std::once_flag once;
    std::call_once(once, [] {
      static ActivationAllocator allocator(c10::GetCPUAllocator());
      c10::SetCPUAllocator(&allocator, 1);
    });
  }

 private:
  // LibTorch also frees by the bare address, so an address must be enough.
  static void release(void* data) {
    const std::unique_ptr<ActivationBlock> block = Registry::all().take(data);
    if (!block) return plain_deleter_(data);
    ActivationStore::State& state = *block->state;
    {
      const std::lock_guard lock(state.mutex);
      state.blocks[block->owner].erase(block.get());
      state.live[block->owner] -= static_cast<int64_t>(block->bytes);
      if (!block->parked) state.resident -= static_cast<int64_t>(block->bytes);
      if (block->offset >= 0) state.free_extents.emplace(block->bytes, block->offset);
    }
    std::free(block->data);
  }
  c10::Allocator* plain_;
  static c10::DeleterFnPtr plain_deleter_;
};

thread_local ActivationStore* ActivationAllocator::store = nullptr;
thread_local size_t ActivationAllocator::owner = 0;
c10::DeleterFnPtr ActivationAllocator::plain_deleter_ = nullptr;

ActivationStore::ActivationStore(size_t owners, const fs::path& folder) : state_(std::make_shared<State>()) {
  ActivationAllocator::install();
  state_->blocks.resize(owners);
  state_->live.resize(owners);
  state_->folder = folder;
}
ActivationStore::~ActivationStore() = default;

ActivationStore::Scope::Scope(ActivationStore& store, size_t owner)
    : previous_(ActivationAllocator::store), previous_owner_(ActivationAllocator::owner) {
  ActivationAllocator::store = &store;
  ActivationAllocator::owner = owner;
}
ActivationStore::Scope::~Scope() {
  ActivationAllocator::store = previous_;
  ActivationAllocator::owner = previous_owner_;
}

void ActivationStore::park(size_t owner) {
  std::vector<ActivationBlock*> blocks;
  {
    const std::lock_guard lock(state_->mutex);
    state_->open_file();
    for (ActivationBlock* block : state_->blocks[owner]) {
      if (block->parked) continue;
      if (block->offset < 0) block->offset = state_->extent(block->bytes);
      blocks.push_back(block);
    }
  }
  for (ActivationBlock* block : blocks) {
    for (size_t done = 0; done < block->bytes;) {
      const ssize_t count = ::pwrite(state_->file, static_cast<char*>(block->data) + done,
                                     block->bytes - done, block->offset + static_cast<off_t>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) state_->fail("cannot put waiting activations into a file");
      done += static_cast<size_t>(count);
    }
    ::madvise(block->data, block->bytes, MADV_DONTNEED);
    const std::lock_guard lock(state_->mutex);
    block->parked = true;
    state_->resident -= static_cast<int64_t>(block->bytes);
    state_->written += static_cast<int64_t>(block->bytes);
  }
}

void ActivationStore::fetch(size_t owner) {
  std::vector<ActivationBlock*> blocks;
  {
    const std::lock_guard lock(state_->mutex);
    for (ActivationBlock* block : state_->blocks[owner]) {
      if (block->parked) blocks.push_back(block);
    }
  }
  for (ActivationBlock* block : blocks) {
    for (size_t done = 0; done < block->bytes;) {
      const ssize_t count = ::pread(state_->file, static_cast<char*>(block->data) + done, block->bytes - done,
                                    block->offset + static_cast<off_t>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) state_->fail("cannot read waiting activations back");
      done += static_cast<size_t>(count);
    }
    const std::lock_guard lock(state_->mutex);
    block->parked = false;
    state_->resident += static_cast<int64_t>(block->bytes);
    state_->peak = std::max(state_->peak, state_->resident);
  }
}

int64_t ActivationStore::live_bytes(size_t owner) const {
  const std::lock_guard lock(state_->mutex);
  return state_->live[owner];
}

int64_t ActivationStore::peak_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->peak;
}

void ActivationStore::reset_peak() {
  const std::lock_guard lock(state_->mutex);
  state_->peak = state_->resident;
}

int64_t ActivationStore::parked_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->written;
}

}  // namespace gramian::tensor
