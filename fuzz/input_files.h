// Bytes of a fuzz target as files: readers map what they read.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace gramian::fuzz {

// One nameless file.
class InputFile {
 public:
  InputFile(const uint8_t* data, size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 || ::write(fd_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~InputFile() { ::close(fd_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// `count` texts: each but the last ends with a NUL, which no text file holds. Those that are not there are empty.
inline std::vector<std::string_view> parts_of(const uint8_t* data, size_t size, size_t count) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    const size_t end = rest.find('\0');
    parts.push_back(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  parts.push_back(rest);
  return parts;
}

// A folder of files for one process, in memory where the system has such a place.
class InputFolder {
 public:
  InputFolder() {
    std::error_code ignored;
    const std::filesystem::path memory = "/dev/shm";
    const bool usable = std::filesystem::is_directory(memory, ignored) && ::access(memory.c_str(), W_OK) == 0;
    std::string name =
        ((usable ? memory : std::filesystem::temp_directory_path()) / "gramian-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~InputFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  InputFolder(const InputFolder&) = delete;
  InputFolder& operator=(const InputFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

  // No file where `bytes` is empty.
  void put(const std::string& name, std::string_view bytes) const {
    std::filesystem::remove(path_ / name);
    if (bytes.empty()) return;
    std::ofstream out(path_ / name, std::ios::binary);
    if (!out.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush()) std::abort();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace gramian::fuzz
