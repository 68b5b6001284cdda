// Files: read-only mappings, and outputs that appear under their final name only when they are complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gramian {

// A whole file mapped read-only; the mapping lives as long as the object.
class MappedFile {
 public:
  // Throws invalid_argument when the file does not exist or is not a regular file, io otherwise. An empty file maps to
  // an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  const std::filesystem::path& path() const noexcept { return path_; }
  // Tells the kernel that these pages are not needed soon, so that they stop counting as resident.
  void drop(std::span<const std::byte> part) const noexcept;
  // Has the kernel read these pages from the disk in the background. They count as resident only when they are touched.
  void read_ahead(std::span<const std::byte> part) const noexcept;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A file written at explicit offsets, fsynced on close(). Throws io with the path.
class OutputFile {
 public:
  enum class Content { discard, keep };
  explicit OutputFile(const std::filesystem::path& path, Content content = Content::discard);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  // Makes the file `bytes` long, with room on the disk for all of them where the file system can promise it.
  void reserve(uint64_t bytes);
  void sync();
  // fsync and close; without it the destructor closes without a promise.
  void close();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// A file that at most one process holds, by flock(2): a process that dies lets go of it.
class FileLock {
 public:
  // Makes the file where it is missing. Throws io; check held().
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  // Whether this object has the lock: false while another one has it.
  bool held() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A folder built elsewhere on the file system of its final place and renamed there by commit().
class StagedDirectory {
 public:
  // Throws invalid_argument when `final_path` exists and is not an empty folder, unless `replace`; io when its parent cannot
  // be written.
  // Symbolic links and mount points are refused too: the finished folder could not be renamed there.
  static void refuse_occupied(const std::filesystem::path& given, bool replace);
  // Refuses likewise; makes `staging`, or goes on with what is in it.
  StagedDirectory(const std::filesystem::path& final_path, bool replace,
                  const std::filesystem::path& staging);

  const std::filesystem::path& path() const noexcept { return staging_; }
  // fsyncs the folder and those in it, moves a replaced folder aside (to STAGING.replaced), renames, removes the replaced one.
  void commit();

 private:
  std::filesystem::path final_;
  std::filesystem::path staging_;
  bool replace_ = false;
};

// The path, absolute and without a slash at its end.
std::filesystem::path plain_path(const std::filesystem::path& path);
// Makes `folder` and those above it; returns the topmost that was made, or nothing. Throws io.
std::filesystem::path make_folders(const std::filesystem::path& folder);
// Throws invalid_argument when a file of this name would be in the way: where a folder is, or one of `inputs`, or inside one.
void refuse_output_file(const std::filesystem::path& path, const std::vector<std::filesystem::path>& inputs);

// Whole file as text. Throws invalid_argument when it does not exist.
std::string read_text(const std::filesystem::path& path);
// Makes `path` of what `write` puts into the file: under a temporary name in the same folder, fsynced, renamed. Nothing
// is left behind when `write` throws.
void write_atomically(const std::filesystem::path& path, const std::function<void(OutputFile&)>& write);
void write_atomically(const std::filesystem::path& path, std::string_view content);
// Copies the bytes of a file (a link to one is followed), through write_atomically(), with little of it in memory at a time.
void copy_atomically(const std::filesystem::path& from, const std::filesystem::path& to);
// fsync of a folder, so that names in it survive a crash.
void sync_directory(const std::filesystem::path& path);

}  // namespace gramian
