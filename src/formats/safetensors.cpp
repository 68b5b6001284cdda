#include "formats/safetensors.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "formats/encoded_tensor.h"
#include "formats/json.h"
#include "formats/safetensors_header.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  return text;
}

// Whether `text` starts with `prefix` (lower case) in any case of letters.
bool starts_with_any_case(std::string_view text, std::string_view prefix) {
  if (text.size() < prefix.size()) return false;
  return std::equal(prefix.begin(), prefix.end(), text.begin(),
                    [](char p, char t) { return p == std::tolower(static_cast<unsigned char>(t)); });
}

// Throws when the file is recognizably something else. Only for files whose header length makes no sense: a
// valid length may begin with the same bytes as a pickle.
void refuse_other_formats(std::string_view bytes, const std::string& where) {
  const auto refuse = [&](const std::string& found, const std::string& hint) {
    throw Error(ErrorKind::corrupt_data, where, "expected a safetensors file, found " + found, hint);
  };
  if (bytes.empty()) refuse("an empty file (0 bytes)", "download it again");
  if (bytes.starts_with("version https://git-lfs")) {
    std::string declared;
    constexpr std::string_view kSize = "\nsize ";
    const std::string_view pointer = bytes.substr(0, 1024);
    if (const size_t at = pointer.find(kSize); at != std::string_view::npos) {
      const std::string_view rest = pointer.substr(at + kSize.size());
      const auto digits =
          std::find_if(rest.begin(), rest.end(), [](unsigned char c) { return !std::isdigit(c); });
      declared = str(" for a file of ", std::string_view(rest.begin(), digits), " bytes");
    }
    refuse(str("a git-LFS text pointer (", bytes.size(), " bytes)", declared),
           "run 'git lfs pull' in its repository");
  }
  const std::string_view text = trimmed(bytes.substr(0, 1024));
  if (starts_with_any_case(text, "<!doctype") || starts_with_any_case(text, "<html") ||
      text.starts_with("<?xml")) {
    refuse(str("an HTML or XML page (", bytes.size(), " bytes)"),
           "download the file itself, not its web page");
  }
  if (text.starts_with("{")) refuse(str("JSON text (", bytes.size(), " bytes)"), "download the file again");
  if (bytes.starts_with("GGUF")) refuse("a GGUF file", "pass the model folder with safetensors files");
  const char* convert = "convert it to safetensors; pickles can run code and are never loaded";
  if (bytes.starts_with("PK\x03\x04")) refuse("a zip archive (a PyTorch .bin or .pt file?)", convert);
  if (bytes.size() >= 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5)
    refuse("a Python pickle", convert);
  if (bytes.starts_with("\x1f\x8b")) refuse("a gzip archive", "unpack it");
}

// Length of the JSON header, checked against the file's size and the format's limit.
uint64_t header_bytes(std::string_view bytes, const std::string& where) {
  const char* remedy = "download or write the file again";
  if (bytes.size() < 8) {
    refuse_other_formats(bytes, where);
    throw Error(ErrorKind::corrupt_data, where,
                str("expected a header length of 8 bytes, the file has ", bytes.size()), remedy);
  }
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  if (length > bytes.size() - 8) {
    refuse_other_formats(bytes, where);
    throw Error(ErrorKind::corrupt_data, where,
                str("the header declares ", length, " bytes after the first 8, the file has ", bytes.size(),
                    " bytes in all"),
                remedy);
  }
  if (length > safetensors::kHeaderBytesMax) {
    refuse_other_formats(bytes, where);
    throw Error(ErrorKind::corrupt_data, where,
                str("the header declares ", length, " bytes, the limit is ", safetensors::kHeaderBytesMax),
                remedy);
  }
  if (length == 0 || bytes[8] != '{') {
    refuse_other_formats(bytes, where);
    throw Error(ErrorKind::corrupt_data, where,
                str("expected a JSON header of ", length, " bytes that begins with '{' at byte 8"), remedy);
  }
  return length;
}

}  // namespace

int64_t StoredTensor::values() const noexcept {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

at::Tensor StoredTensor::matrix(int64_t index) const {
  return encoding == nullptr ? to_tensor().select(0, index) : encoding->decode_matrix(index);
}

void StoredTensor::drop() const {
  file->drop(bytes);
  if (encoding != nullptr && encoding->scales.file != nullptr) encoding->scales.drop();
}

at::Tensor StoredTensor::to_tensor() const {
  if (encoding != nullptr) return encoding->decode();
  if (dtype == DType::boolean &&
      std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; })) {
    throw Error(ErrorKind::corrupt_data, file ? file->path().string() : "",
                "a BOOL tensor holds a byte that is neither 0 nor 1", "write the file again");
  }
  const at::ScalarType type = tensor::scalar_type(dtype);
  if (reinterpret_cast<uintptr_t>(bytes.data()) % dtype_bytes(dtype) == 0) {
    return tensor::wrap(bytes.data(), shape, type, file);
  }
  at::Tensor copy = tensor::empty(shape, type);
  if (!bytes.empty()) std::memcpy(copy.data_ptr(), bytes.data(), bytes.size());
  return copy;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  const auto file = std::make_shared<const MappedFile>(path);
  const std::string where = path.string();
  const std::string_view text = as_text(file->bytes());
  const uint64_t length = header_bytes(text, where);
  const std::span<const std::byte> data = file->bytes().subspan(8 + length);
  safetensors::Header header = safetensors::parse_header(text.substr(8, length), data.size(), where);
  metadata_ = std::move(header.metadata);
  for (safetensors::Entry& entry : header.entries) {
    StoredTensor stored{entry.dtype, std::move(entry.shape),
                        data.subspan(entry.begin, entry.end - entry.begin), file};
    tensors_.emplace(std::move(entry.name), std::move(stored));
  }
}

const StoredTensor& SafetensorsFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(ErrorKind::invalid_argument, path_.string(), "no tensor " + quote_name(name));
  }
  return found->second;
}

at::Tensor SafetensorsFile::load(const std::string& name) const { return tensor(name).to_tensor(); }

}  // namespace gramian
