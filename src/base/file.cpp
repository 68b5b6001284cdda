#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const fs::path& path, const char* what, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  throw Error(missing ? ErrorKind::invalid_argument : ErrorKind::io, path.string(),
              str(what, ": ", std::strerror(error)), missing ? "check the path" : "");
}

fs::path parent_of(const fs::path& path) { return plain_path(path).parent_path(); }

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  // Without O_NONBLOCK, opening a FIFO waits for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(path, "cannot open", errno);
  struct stat status{};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    throw Error(ErrorKind::invalid_argument, path.string(),
                S_ISDIR(status.st_mode) ? "is a folder, expected a file" : "expected a regular file",
                "name a file");
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ > 0) {
    void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    ::close(fd);
    if (mapping == MAP_FAILED) fail(path, "cannot map", error);
    data_ = static_cast<const std::byte*>(mapping);
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(std::span<const std::byte> part) const noexcept {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void MappedFile::read_ahead(std::span<const std::byte> part) const noexcept {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size());
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

OutputFile::OutputFile(const fs::path& path, Content content) : path_(path) {
  const int discard = content == Content::discard ? O_TRUNC : 0;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | discard | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(path, "cannot create", errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(path_, "cannot write", errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void OutputFile::reserve(uint64_t bytes) {
  const auto size = static_cast<off_t>(bytes);
  const int error = size > 0 && ::fallocate(fd_, 0, 0, size) != 0 ? errno : 0;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    fail(path_, str("there is no room for its ", bytes, " bytes").c_str(), error);
  if (::ftruncate(fd_, size) != 0) fail(path_, "cannot set the length", errno);
}

void OutputFile::sync() {
  if (::fsync(fd_) != 0) fail(path_, "cannot flush to disk", errno);
}

void OutputFile::close() {
  if (fd_ < 0) return;
  sync();
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail(path_, "cannot close", errno);
}

FileLock::FileLock(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail(path, "cannot create", errno);
  // Some network file systems know no locks: there nobody is kept out.
  const int error = ::flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  if (error == 0 || error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS) {
    fd_ = fd;
    return;
  }
  ::close(fd);
  if (error != EWOULDBLOCK) fail(path, "cannot lock", error);
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

fs::path plain_path(const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

fs::path make_folders(const fs::path& folder) {
  fs::path made;
  // Of a relative path everything above the first name is the folder that we are in.
  for (fs::path above = folder; !above.empty() && !fs::exists(above); above = above.parent_path())
    made = above;
  if (folder.empty()) return made;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(ErrorKind::io, folder.string(), "cannot create folder: " + error.message());
  return made;
}

void refuse_output_file(const fs::path& path, const std::vector<fs::path>& inputs) {
  if (fs::is_directory(path))
    throw Error(ErrorKind::invalid_argument, path.string(), "is a folder, expected a file name",
                "name a file");
  const fs::path folder = fs::absolute(path).parent_path();
  for (const fs::path& input : inputs) {
    std::error_code ignored;
    if (fs::equivalent(path, input, ignored) || fs::equivalent(folder, input, ignored))
      throw Error(ErrorKind::invalid_argument, path.string(), "lies among what the command reads",
                  "name another output");
  }
}

void StagedDirectory::refuse_occupied(const fs::path& given, bool replace) {
  if (given.empty()) throw Error(ErrorKind::invalid_argument, "output", "the path is empty", "name a folder");
  const fs::path final_path = plain_path(given);
  // The finished folder is renamed to this name, which would replace the link or fail on the mount.
  if (fs::is_symlink(final_path)) {
    throw Error(ErrorKind::invalid_argument, final_path.string(), "is a symbolic link",
                "name the folder that it points to");
  }
  fs::path parent = final_path.parent_path();
  while (!fs::exists(parent)) parent = parent.parent_path();
  if (::access(parent.c_str(), W_OK) != 0)
    throw Error(ErrorKind::io, parent.string(), str("cannot write here: ", std::strerror(errno)),
                "name another output");
  if (!fs::exists(final_path)) return;
  if (!fs::is_directory(final_path)) {
    throw Error(ErrorKind::invalid_argument, final_path.string(), "is a file, expected a folder",
                "name another output");
  }
  struct stat inside{}, outside{};
  if (::stat(final_path.c_str(), &inside) == 0 && ::stat(parent.c_str(), &outside) == 0 &&
      inside.st_dev != outside.st_dev) {
    throw Error(ErrorKind::invalid_argument, final_path.string(), "is a mount point",
                "name a folder inside it");
  }
  if (!replace && !fs::is_empty(final_path)) {
    throw Error(ErrorKind::invalid_argument, final_path.string(), "output folder exists and is not empty",
                "name another output or pass --force to replace it");
  }
}

StagedDirectory::StagedDirectory(const fs::path& final_path, bool replace, const fs::path& staging)
    : staging_(staging), replace_(replace) {
  refuse_occupied(final_path, replace);
  final_ = plain_path(final_path);
  make_folders(staging_);
}

void StagedDirectory::commit() {
  // Somebody may have filled it meanwhile.
  refuse_occupied(final_, replace_);
  for (const auto& entry : fs::recursive_directory_iterator(staging_))
    if (entry.is_directory()) sync_directory(entry.path());
  sync_directory(staging_);
  fs::path aside;
  if (fs::exists(final_)) {
    if (fs::is_empty(final_)) {
      fs::remove(final_);
    } else {
      aside = staging_;
      aside += ".replaced";
      fs::rename(final_, aside);
    }
  }
  std::error_code error;
  fs::rename(staging_, final_, error);
  if (error) {
    if (!aside.empty()) fs::rename(aside, final_);
    throw Error(ErrorKind::io, final_.string(), "cannot rename the finished output here: " + error.message());
  }
  sync_directory(final_.parent_path());
  if (!aside.empty()) fs::remove_all(aside, error);
}

std::string read_text(const fs::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void write_atomically(const fs::path& path, const std::function<void(OutputFile&)>& write) {
  const fs::path folder = parent_of(path);
  const fs::path temporary = folder / str(".", path.filename().string(), ".partial-", ::getpid());
  try {
    OutputFile out(temporary);
    write(out);
    out.close();
    fs::rename(temporary, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  sync_directory(folder);
}

void write_atomically(const fs::path& path, std::string_view content) {
  write_atomically(path, [&](OutputFile& out) { out.write_at(0, std::as_bytes(std::span(content))); });
}

void copy_atomically(const fs::path& from, const fs::path& to) {
  constexpr size_t kChunk = size_t{16} << 20;
  const MappedFile file(from);
  write_atomically(to, [&](OutputFile& out) {
    for (size_t at = 0; at < file.bytes().size(); at += kChunk) {
      const auto part = file.bytes().subspan(at, std::min(kChunk, file.bytes().size() - at));
      out.write_at(at, part);
      file.drop(part);
    }
  });
}

void sync_directory(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(path, "cannot open folder", errno);
  const int result = ::fsync(fd);
  ::close(fd);
  // Some file systems have no fsync for folders; they say EINVAL.
  if (result != 0 && errno != EINVAL) fail(path, "cannot flush folder to disk", errno);
}

}  // namespace gramian
