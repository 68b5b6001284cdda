#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "formats/gguf/gguf.h"
#include "formats/json.h"

namespace gramian::gguf {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw Error(ErrorKind::invalid_argument, "", what, hint);
}

template <class T>
void put(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    put(out, static_cast<uint64_t>(value.size()));
    out += value;
  } else if constexpr (std::is_same_v<T, bool>) {
    out += value ? '\1' : '\0';
  } else {
    static_assert(std::is_arithmetic_v<T>);
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out.append(bytes, sizeof(T));
  }
}

template <class T>
void put_elements(std::string& out, const std::vector<T>& elements) {
  put(out, static_cast<uint64_t>(elements.size()));
  for (const auto& element : elements) put<T>(out, element);
}

void put_value(std::string& out, const std::string& key, const Value& value) {
  put(out, static_cast<uint32_t>(value.index()));
  std::visit(
      [&](const auto& held) {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, Array>) {
          put(out, static_cast<uint32_t>(held.index()));
          std::visit(
              [&](const auto& elements) {
                if constexpr (std::is_same_v<std::decay_t<decltype(elements)>, std::monostate>) {
                  GRAMIAN_CHECK(false, "the key ", quote_name(key), " holds an array without a type");
                } else {
                  put_elements(out, elements);
                }
              },
              held);
        } else {
          put(out, held);
        }
      },
      value);
}

uint64_t alignment_of(const Metadata& metadata) {
  const Value* value = metadata.find("general.alignment");
  if (value == nullptr) return kDefaultAlignment;
  const auto* alignment = std::get_if<uint32_t>(value);
  if (alignment == nullptr || !std::has_single_bit(*alignment))
    refuse("\"general.alignment\" must be a power of two of type u32", "leave it out");
  return *alignment;
}

void check_tensor(const TensorType& tensor) {
  const std::string name = quote_name(tensor.name);
  if (tensor.name.empty() || tensor.name.size() > kNameBytesMax) {
    refuse(str("a tensor name in GGUF has 1 to ", kNameBytesMax, " bytes, found ", name),
           "rename the tensor");
  }
  if (tensor.shape.size() > kDimensionsMax) {
    refuse(str("tensor ", name, " has ", tensor.shape.size(), " dimensions, GGUF knows at most ",
               kDimensionsMax),
           "reshape the tensor");
  }
  GRAMIAN_CHECK(tensor.codec != nullptr, "tensor ", name, " has no type");
  int64_t values = 1;
  for (const int64_t size : tensor.shape) {
    if (size <= 0 || size > std::numeric_limits<int64_t>::max() / 8 / values)
      refuse(str("tensor ", name, " has the impossible size ", size), "check the source model");
    values *= size;
  }
  if (tensor.columns() % tensor.codec->block != 0) {
    refuse(str("tensor ", name, " has rows of ", tensor.columns(), " values, ", tensor.codec->name,
               " needs a multiple of ", tensor.codec->block),
           "choose another type for this tensor");
  }
}

}  // namespace

Layout lay_out(const Metadata& metadata, const std::vector<TensorType>& tensors) {
  const uint64_t alignment = alignment_of(metadata);
  const auto padded = [&](uint64_t size) { return (size + alignment - 1) / alignment * alignment; };
  Layout layout;
  std::string& head = layout.head;
  head = "GGUF";
  put(head, uint32_t{3});
  put(head, static_cast<uint64_t>(tensors.size()));
  put(head, static_cast<uint64_t>(metadata.entries().size()));
  for (const auto& [key, value] : metadata.entries()) {
    if (key.empty()) refuse("a key of the metadata is empty", "name it");
    put(head, key);
    put_value(head, key, value);
  }
  std::set<std::string_view> names;
  uint64_t at = 0;
  for (const TensorType& tensor : tensors) {
    check_tensor(tensor);
    if (!names.insert(tensor.name).second)
      refuse(str("tensor ", quote_name(tensor.name), " is there twice"), "rename one of them");
    put(head, tensor.name);
    put(head, static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      put(head, static_cast<uint64_t>(*size));
    put(head, tensor.codec->ggml_type);
    put(head, at);
    layout.offsets.push_back(at);
    at += padded(tensor.bytes());
    GRAMIAN_CHECK(at < uint64_t{1} << 63, "file longer than 2^63 bytes");
  }
  head.resize(padded(head.size()), '\0');
  for (uint64_t& offset : layout.offsets) offset += head.size();
  layout.bytes = head.size() + at;
  return layout;
}

PieceWriter::PieceWriter(const std::filesystem::path& path, const Metadata& metadata,
                         std::vector<TensorType> tensors)
    : path_(path),
      tensors_(std::move(tensors)),
      layout_(lay_out(metadata, tensors_)),
      file_(path, OutputFile::Content::keep) {
  file_.reserve(layout_.bytes);
  file_.write_at(0, std::as_bytes(std::span(layout_.head)));
}

void PieceWriter::write(size_t tensor, uint64_t at, std::span<const std::byte> bytes) {
  const uint64_t all = tensors_[tensor].bytes();
  GRAMIAN_CHECK(at <= all && bytes.size() <= all - at, "too many bytes for tensor ",
                quote_name(tensors_[tensor].name));
  file_.write_at(layout_.offsets[tensor] + at, bytes);
}

std::vector<std::byte> PieceWriter::read(size_t tensor, uint64_t at, size_t size) const {
  const uint64_t all = tensors_[tensor].bytes();
  GRAMIAN_CHECK(at <= all && size <= all - at, "not within tensor ", quote_name(tensors_[tensor].name));
  const MappedFile file(path_);
  const auto part = file.bytes().subspan(static_cast<size_t>(layout_.offsets[tensor] + at), size);
  return {part.begin(), part.end()};
}

void write(const std::filesystem::path& path, const Metadata& metadata,
           const std::vector<TensorType>& tensors, const std::function<void(size_t, const Append&)>& fill) {
  const Layout layout = lay_out(metadata, tensors);
  write_atomically(path, [&](OutputFile& out) {
    // What nothing is written to, the padding, reads as zeros.
    out.reserve(layout.bytes);
    out.write_at(0, std::as_bytes(std::span(layout.head)));
    for (size_t i = 0; i < tensors.size(); ++i) {
      uint64_t done = 0;
      fill(i, [&](std::span<const std::byte> bytes) {
        GRAMIAN_CHECK(bytes.size() <= tensors[i].bytes() - done, "too many bytes for tensor ",
                      quote_name(tensors[i].name));
        out.write_at(layout.offsets[i] + done, bytes);
        done += bytes.size();
      });
      GRAMIAN_CHECK(done == tensors[i].bytes(), "tensor ", quote_name(tensors[i].name), " has ", done,
                    " bytes, expected ", tensors[i].bytes());
    }
  });
}

}  // namespace gramian::gguf
