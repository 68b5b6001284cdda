// The memory of activations that wait: which batch holds how much of it, and a way to put a batch's share into a file and
// back at the same addresses, so that whoever holds the tensors (the frames of a forward) need not know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace gramian::tensor {

class ActivationStore {
 public:
  // For `owners` batches. `folder`: where park() keeps its file, which has no name there and ends with the process;
  // empty: park() may not be called.
  ActivationStore(size_t owners, const std::filesystem::path& folder);
  ~ActivationStore();
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  // While it lives, tensors of at least one page (4 KiB) that LibTorch makes in host memory on this thread belong to
  // `owner`. They may outlive the scope and the store, and may be freed on any thread.
  class Scope {
   public:
    Scope(ActivationStore& store, size_t owner);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ActivationStore* previous_;
    size_t previous_owner_;
  };

  // Writes the owner's tensors to the file and gives their pages back; they must not be read or written until fetch().
  // Throws io when the disk is full.
  void park(size_t owner);
  // Reads back what park() wrote; does nothing for an owner that is not parked.
  void fetch(size_t owner);

  // Bytes of the owner's tensors, parked or not.
  int64_t live_bytes(size_t owner) const;
  // Most bytes of tensors that were in memory at one time, all owners together, since the last reset_peak().
  int64_t peak_bytes() const;
  void reset_peak();
  // Bytes written by park() so far.
  int64_t parked_bytes() const;

 private:
  struct State;
  friend struct ActivationBlock;
  friend class ActivationAllocator;
  std::shared_ptr<State> state_;
};

}  // namespace gramian::tensor
