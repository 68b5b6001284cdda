// What an unfinished job leaves beside its output, so that the same command goes on where it stopped. In OUT.journal/:
//
//   lock               held by the job while it runs
//   job.json           what the output's bytes depend on: options, calibration rows, digests of the source
//   output/            the checkpoint in the making
//   layer-00003.json   layer 3 is finished: its part of the report, and digests of the tensors it wrote
//   input-00004/       the activations that enter layer 4; the last two are kept
//
// A layer is finished when its file is there: everything it speaks of is on the disk by then. docs/resume.md.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "base/log.h"

namespace gramian {

// What to do with the journal of an unfinished job.
enum class Unfinished {
  go_on,    // when it is of the same job; refused otherwise
  discard,  // begin again
};

class Journal {
 public:
  using Json = nlohmann::ordered_json;

  static std::filesystem::path folder_of(const std::filesystem::path& output);
  // Throws invalid_argument when a running job writes to `output`.
  static void refuse_busy(const std::filesystem::path& output);

  // `identity`: an object of objects; what the bytes of the output depend on. Throws invalid_argument when another job is
  // running, or when the journal is of another job, naming what differs; io.
  Journal(const std::filesystem::path& output, const Json& identity, Unfinished unfinished, Log& log);
  // Keeps the folder when a layer is finished and the output is not complete, and says so; else removes it.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  const Json& identity() const noexcept { return identity_; }
  std::filesystem::path staging() const { return folder_ / "output"; }
  // The records of the layers that are finished, from the first on.
  const std::vector<Json>& layers() const noexcept { return layers_; }
  // Forgets the records from layer `count` on.
  void forget_from(size_t count);
  void finish_layer(const Json& record);

  // Whether an earlier run has copied what the job does not change.
  bool copied() const;
  void set_copied();

  // Where the activations that enter `layer` are, or are to be written before keep_input().
  std::filesystem::path input(size_t layer) const;
  std::filesystem::path new_input(size_t layer) const;
  // The folder new_input() is complete; of older ones all but the last is removed.
  void keep_input(size_t layer);
  // The layers whose inputs are there, newest first.
  std::vector<size_t> inputs() const;

  // Removes the folder: the output is complete, or what is there is not sound.
  void close();

 private:
  void lock();
  void read_layers();
  std::filesystem::path output_, folder_, made_;
  Json identity_;
  Log& log_;
  std::unique_ptr<FileLock> lock_;
  std::vector<Json> layers_;
  bool closed_ = false;
};

}  // namespace gramian
