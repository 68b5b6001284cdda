#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "support/files.h"

namespace gramian {
namespace {

namespace fs = std::filesystem;
using testing_support::error_of;
using testing_support::file_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Names in a folder, hidden ones too.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class FileTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
  fs::path root_ = folder_.path();
};

TEST_F(FileTest, MapsAFile) {
  const std::string text = std::string(10000, 'x') + "end";
  write_bytes(root_ / "a", text);
  const MappedFile file(root_ / "a");
  EXPECT_EQ(text_of(file.bytes()), text);
  EXPECT_EQ(file.path(), root_ / "a");
  // Dropped pages come back from the file.
  file.drop(file.bytes());
  file.drop(file.bytes().subspan(5000, 1));
  file.drop({});
  EXPECT_EQ(text_of(file.bytes()), text);
}

TEST_F(FileTest, TheMappingOutlivesTheName) {
  write_bytes(root_ / "a", "still here");
  const MappedFile file(root_ / "a");
  fs::remove(root_ / "a");
  EXPECT_EQ(text_of(file.bytes()), "still here");
}

TEST_F(FileTest, AnEmptyFileMapsToNothing) {
  write_bytes(root_ / "empty", "");
  EXPECT_TRUE(MappedFile(root_ / "empty").bytes().empty());
  EXPECT_EQ(read_text(root_ / "empty"), "");
}

TEST_F(FileTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo((root_ / "fifo").c_str(), 0600), 0);
  fs::create_directory(root_ / "folder");
  fs::create_symlink(root_ / "nowhere", root_ / "dangling");
  for (const char* name : {"missing", "missing/below", "fifo", "folder", "dangling"}) {
    const Error error = error_of([&] { MappedFile file(root_ / name); });
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument) << name;
    EXPECT_NE(std::string(error.what()).find((root_ / name).string()), std::string::npos) << error.what();
  }
  write_bytes(root_ / "locked", "secret");
  fs::permissions(root_ / "locked", fs::perms::none);
  if (::geteuid() == 0) return;  // root reads everything
  EXPECT_EQ(error_of([&] { MappedFile(root_ / "locked"); }).kind(), ErrorKind::io);
}

TEST_F(FileTest, WritesAtOffsets) {
  {
    OutputFile out(root_ / "a");
    out.write_at(4, std::as_bytes(std::span(std::string_view("tail"))));
    out.write_at(0, std::as_bytes(std::span(std::string_view("head"))));
    out.close();
    out.close();
  }
  EXPECT_EQ(read_text(root_ / "a"), "headtail");
  EXPECT_EQ(error_of([&] { OutputFile(root_ / "no" / "folder"); }).kind(), ErrorKind::invalid_argument);
}

TEST_F(FileTest, AtomicWritesLeaveNothingBeside) {
  for (const char* text : {"first", "", "second"}) {
    write_atomically(root_ / "a", text);
    EXPECT_EQ(read_text(root_ / "a"), text);
  }
  EXPECT_EQ(names_in(root_), std::vector<std::string>{"a"});
  // The name belongs to a folder: the rename fails and the temporary file goes away.
  fs::create_directory(root_ / "folder");
  EXPECT_ANY_THROW(write_atomically(root_ / "folder", "x"));
  // Whoever writes fails: the file that was there stays.
  EXPECT_ANY_THROW(write_atomically(root_ / "a", [](OutputFile& out) {
    out.write_at(0, std::as_bytes(std::span(std::string_view("half"))));
    throw std::runtime_error("no more");
  }));
  EXPECT_EQ(read_text(root_ / "a"), "second");
  EXPECT_EQ(names_in(root_), (std::vector<std::string>{"a", "folder"}));
}

TEST_F(FileTest, CopiesFilesOfAnySize) {
  // One byte around the size of a piece.
  for (const size_t size : {size_t{0}, size_t{1}, (size_t{16} << 20) - 1, (size_t{16} << 20) + 1}) {
    std::string content(size, 'x');
    if (size > 0) content.back() = 'y';
    write_bytes(root_ / "from", content);
    copy_atomically(root_ / "from", root_ / "to");
    EXPECT_TRUE(read_text(root_ / "to") == content) << size;
  }
  fs::create_symlink(root_ / "from", root_ / "link");
  copy_atomically(root_ / "link", root_ / "copy");
  EXPECT_FALSE(fs::is_symlink(root_ / "copy"));
  EXPECT_EQ(fs::file_size(root_ / "copy"), fs::file_size(root_ / "from"));
  EXPECT_EQ(error_of([&] { copy_atomically(root_ / "none", root_ / "to"); }).kind(),
            ErrorKind::invalid_argument);
}

TEST_F(FileTest, ReadAheadBringsPagesIntoTheCache) {
  const fs::path path = root_ / "file";
  write_bytes(path, std::string(size_t{1} << 20, 'x'));
  const int fd = ::open(path.c_str(), O_RDONLY);
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  const MappedFile file(path);
  const auto cached = [&] {
    std::vector<unsigned char> pages(256);
    ::mincore(const_cast<std::byte*>(file.bytes().data()), size_t{1} << 20, pages.data());
    return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
  };
  file.read_ahead(file.bytes());
  for (int i = 0; i < 1000 && cached() < 256; ++i) ::usleep(1000);
  EXPECT_EQ(cached(), 256);
  file.read_ahead({});
  ::close(fd);
}

TEST_F(FileTest, StagedFolderAppearsOnCommit) {
  fs::create_directories(root_ / "deep" / "er");
  for (const char* name : {"out", "deep/er/out", "slash/"}) {
    const fs::path target = root_ / name;
    {
      const StagedDirectory begun(target, false, root_ / "work" / "here");
      write_bytes(begun.path() / "a", "content");
    }
    EXPECT_FALSE(fs::exists(target)) << name;
    // Another one goes on with what is there.
    StagedDirectory staged(target, false, root_ / "work" / "here");
    write_bytes(staged.path() / "b", "more");
    staged.commit();
    EXPECT_EQ(read_text(target / "a"), "content") << name;
    EXPECT_EQ(read_text(target / "b"), "more") << name;
    EXPECT_FALSE(fs::exists(staged.path())) << name;
  }
  EXPECT_EQ(names_in(root_), (std::vector<std::string>{"deep", "out", "slash", "work"}));
}

TEST_F(FileTest, LockIsHeldByOne) {
  {
    const FileLock first(root_ / "lock");
    EXPECT_TRUE(first.held());
    EXPECT_FALSE(FileLock(root_ / "lock").held());
  }
  EXPECT_TRUE(FileLock(root_ / "lock").held());
  EXPECT_EQ(error_of([&] { FileLock(root_ / "none" / "lock"); }).kind(), ErrorKind::invalid_argument);
}

TEST_F(FileTest, ReservedFilesHaveTheirLengthAndKeepTheirContent) {
  write_bytes(root_ / "file", "content");
  {
    OutputFile file(root_ / "file", OutputFile::Content::keep);
    file.reserve(1000);
    file.sync();
  }
  EXPECT_EQ(fs::file_size(root_ / "file"), 1000);
  EXPECT_EQ(read_text(root_ / "file").substr(0, 8), std::string("content\0", 8));
  OutputFile file(root_ / "file", OutputFile::Content::keep);
  file.reserve(3);
  EXPECT_EQ(read_text(root_ / "file"), "con");
  const Error full = error_of([&] { file.reserve(uint64_t{1} << 60); });
  EXPECT_EQ(full.kind(), ErrorKind::io);
  EXPECT_NE(std::string(full.what()).find("no room"), std::string::npos) << full.what();
}

TEST_F(FileTest, FoldersMadeAreKnown) {
  EXPECT_EQ(make_folders(root_ / "a" / "b" / "c"), root_ / "a");
  EXPECT_EQ(make_folders(root_ / "a" / "b" / "d"), root_ / "a" / "b" / "d");
  EXPECT_EQ(make_folders(root_ / "a" / "b"), fs::path());
  // Relative: a file's name alone has an empty parent.
  const fs::path here = fs::current_path();
  fs::current_path(root_);
  EXPECT_EQ(make_folders(""), fs::path());
  EXPECT_EQ(make_folders(fs::path("new") / "folder"), fs::path("new"));
  fs::current_path(here);
  EXPECT_TRUE(fs::is_directory(root_ / "new" / "folder"));
  write_bytes(root_ / "file", "x");
  EXPECT_EQ(error_of([&] { make_folders(root_ / "file" / "below"); }).kind(), ErrorKind::io);
}

TEST_F(FileTest, StagedFolderReplacesOnlyWhenAsked) {
  fs::create_directory(root_ / "empty");
  StagedDirectory(root_ / "empty", false, root_ / "work").commit();
  EXPECT_TRUE(fs::is_empty(root_ / "empty"));

  fs::create_directory(root_ / "full");
  write_bytes(root_ / "full" / "old", "old");
  const Error occupied = error_of([&] { StagedDirectory(root_ / "full", false, root_ / "work"); });
  EXPECT_EQ(occupied.kind(), ErrorKind::invalid_argument);
  EXPECT_NE(std::string(occupied.what()).find("--force"), std::string::npos) << occupied.what();
  {
    const StagedDirectory abandoned(root_ / "full", true, root_ / "work");
  }
  EXPECT_EQ(names_in(root_ / "full"), std::vector<std::string>{"old"});

  StagedDirectory staged(root_ / "full", true, root_ / "work");
  write_bytes(staged.path() / "new", "new");
  EXPECT_EQ(names_in(root_ / "full"), std::vector<std::string>{"old"});
  staged.commit();
  EXPECT_EQ(names_in(root_ / "full"), std::vector<std::string>{"new"});

  write_bytes(root_ / "file", "x");
  for (const bool replace : {false, true}) {
    EXPECT_EQ(error_of([&] { StagedDirectory(root_ / "file", replace, root_ / "work"); }).kind(),
              ErrorKind::invalid_argument);
  }
  EXPECT_EQ(names_in(root_), (std::vector<std::string>{"empty", "file", "full"}));
}

TEST_F(FileTest, StagedFolderSparesWhatAppearedMeanwhile) {
  {
    StagedDirectory late(root_ / "late", false, root_ / "work");
    write_bytes(late.path() / "ours", "x");
    fs::create_directory(root_ / "late");
    write_bytes(root_ / "late" / "theirs", "x");
    EXPECT_EQ(error_of([&] { late.commit(); }).kind(), ErrorKind::invalid_argument);
  }
  EXPECT_EQ(names_in(root_ / "late"), std::vector<std::string>{"theirs"});
  EXPECT_EQ(names_in(root_), (std::vector<std::string>{"late", "work"}));
}

TEST_F(FileTest, StagedFolderRefusesLinksAndNoName) {
  // A rename would replace the link and leave what it points to.
  fs::create_directory(root_ / "empty");
  fs::create_directory_symlink(root_ / "empty", root_ / "link");
  for (const bool replace : {false, true}) {
    EXPECT_EQ(error_of([&] { StagedDirectory(root_ / "link", replace, root_ / "work"); }).kind(),
              ErrorKind::invalid_argument);
    EXPECT_EQ(error_of([&] { StagedDirectory("", replace, root_ / "work"); }).kind(),
              ErrorKind::invalid_argument);
  }
  EXPECT_TRUE(fs::is_symlink(root_ / "link"));
}

}  // namespace
}  // namespace gramian
