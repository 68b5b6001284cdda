#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "base/format.h"
#include "formats/gguf/gguf.h"
#include "formats/json.h"

static_assert(std::endian::native == std::endian::little, "values are copied as they lie in the file");

namespace gramian::gguf {
namespace {

constexpr const char* kRemedy = "download or write the file again";
// Least bytes of a key with its value, and of a tensor's description: what a count can promise.
constexpr uint64_t kKeyBytesMin = 8 + 1 + 4 + 1, kTensorBytesMin = 8 + 1 + 4 + 4 + 8;

// Reads on through the bytes of a file; nothing is read, and no room made, beyond their end.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  uint64_t at() const { return at_; }
  const std::string& where() const { return where_; }

  [[noreturn]] void fail(const std::string& what, ErrorKind kind = ErrorKind::corrupt_data,
                         const char* hint = kRemedy) const {
    throw Error(kind, where_, str(what, " (at byte ", at_, ")"), hint);
  }
  std::span<const std::byte> take(uint64_t count, const char* what) {
    if (count > bytes_.size() - at_) {
      fail(str("expected ", count, " bytes of ", what, ", the file has ", bytes_.size() - at_, " left"));
    }
    const auto taken = bytes_.subspan(at_, count);
    at_ += count;
    return taken;
  }
  template <class T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }
  // A count of things that take `bytes_min` bytes or more each.
  uint64_t count(uint64_t bytes_min, const char* what) {
    const auto value = number<uint64_t>(what);
    if (value > (bytes_.size() - at_) / bytes_min) {
      fail(str("expected ", value, " ", what, ", the file has only ", bytes_.size() - at_, " bytes left"));
    }
    return value;
  }
  std::string string(const char* what) {
    const auto length = count(1, what);
    const auto bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
  std::string where_;
};

template <class T>
T read_scalar(Cursor& in) {
  if constexpr (std::is_same_v<T, std::string>) {
    return in.string("bytes of a string");
  } else if constexpr (std::is_same_v<T, bool>) {
    const auto byte = in.number<uint8_t>("a bool");
    if (byte > 1) in.fail(str("expected 0 or 1 as a bool, found ", int{byte}));
    return byte == 1;
  } else {
    return in.number<T>("a value");
  }
}

template <class T>
struct ElementOf {
  using Type = T;
};
template <class T>
struct ElementOf<std::vector<T>> {
  using Type = T;
};

// Reads alternative `type` of a variant: the numbers are the indices.
template <class V, size_t I = 0>
V read_alternative(Cursor& in, uint32_t type, const std::string& key);

template <class A>
A read_elements(Cursor& in) {
  using T = typename ElementOf<A>::Type;
  const uint64_t count = in.count(std::is_same_v<T, std::string> ? 8 : sizeof(T), "array elements");
  A elements;
  elements.reserve(count);
  for (uint64_t i = 0; i < count; ++i) elements.push_back(read_scalar<T>(in));
  return elements;
}

template <class V, size_t I>
V read_alternative(Cursor& in, uint32_t type, const std::string& key) {
  if constexpr (I < std::variant_size_v<V>) {
    using T = std::variant_alternative_t<I, V>;
    if (type != I) return read_alternative<V, I + 1>(in, type, key);
    if constexpr (std::is_same_v<T, std::monostate>) {
      in.fail(str("the key ", quote_name(key), " holds an array of arrays"));
    } else if constexpr (std::is_same_v<T, Array>) {
      const auto element = in.number<uint32_t>("an element type");
      return read_alternative<Array>(in, element, key);
    } else if constexpr (std::is_same_v<V, Array>) {
      return read_elements<T>(in);
    } else {
      return read_scalar<T>(in);
    }
  } else {
    in.fail(str("the key ", quote_name(key), " has the unknown value type ", type));
  }
}

Metadata read_metadata(Cursor& in, uint64_t count) {
  Metadata metadata(in.where());
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key = in.string("a key");
    if (key.empty()) in.fail(str("key ", i, " is empty"));
    if (metadata.find(key) != nullptr) in.fail(str("the key ", quote_name(key), " is there twice"));
    const auto type = in.number<uint32_t>("a value type");
    metadata.set(key, read_alternative<Value>(in, type, key));
  }
  return metadata;
}

uint64_t read_alignment(const Metadata& metadata, const Cursor& in) {
  const Value* value = metadata.find("general.alignment");
  if (value == nullptr) return kDefaultAlignment;
  const auto* alignment = std::get_if<uint32_t>(value);
  if (alignment == nullptr || !std::has_single_bit(*alignment)) {
    in.fail(alignment == nullptr
                ? str("expected u32 under the key \"general.alignment\", found ", type_name(*value))
                : str("the alignment ", *alignment, " is no power of two"));
  }
  return *alignment;
}

// The description of one tensor, its offset and its size.
Tensor read_tensor(Cursor& in, uint64_t* offset) {
  Tensor tensor;
  tensor.name = in.string("a tensor's name");
  const std::string name = quote_name(tensor.name);
  if (tensor.name.empty() || tensor.name.size() > kNameBytesMax) {
    in.fail(str("expected a tensor name of 1 to ", kNameBytesMax, " bytes, found ", name));
  }
  const auto dimensions = in.number<uint32_t>("a number of dimensions");
  if (dimensions > kDimensionsMax)
    in.fail(
        str("tensor ", name, " has ", dimensions, " dimensions, at most ", kDimensionsMax, " are possible"));
  tensor.shape.resize(dimensions);
  int64_t values = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = in.number<uint64_t>("a dimension");
    if (size == 0 || size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / 8 / values))
      in.fail(str("tensor ", name, " has the impossible size ", size, " in dimension ", i));
    tensor.shape[dimensions - 1 - i] = static_cast<int64_t>(size);
    values *= static_cast<int64_t>(size);
  }
  const auto type = in.number<uint32_t>("a tensor type");
  tensor.codec = find_codec(type);
  if (tensor.codec == nullptr) {
    const std::string known = listed(codecs(), [](const Codec& codec) { return codec.name; });
    in.fail(str("tensor ", name, " has the GGML type ", type, ", which cannot be read"),
            ErrorKind::unsupported, str("convert the model to one of ", known).c_str());
  }
  if (tensor.columns() % tensor.codec->block != 0) {
    in.fail(str("tensor ", name, " has rows of ", tensor.columns(), " values, ", tensor.codec->name,
                " needs a multiple of ", tensor.codec->block));
  }
  *offset = in.number<uint64_t>("an offset");
  return tensor;
}

uint32_t read_version(Cursor& in) {
  const auto magic = in.take(4, "the magic number");
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) in.fail("expected a file that begins with GGUF");
  const auto version = in.number<uint32_t>("a version");
  if (version == 2 || version == 3) return version;
  const bool swapped = (version & 0xffffu) == 0 && version != 0;
  in.fail(swapped ? std::string("the file is big-endian")
                  : str("the file has version ", version, ", expected 2 or 3"),
          ErrorKind::unsupported, "convert the model again, to a little-endian file of version 3");
}

}  // namespace

int64_t TensorType::rows() const noexcept {
  int64_t count = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) count *= shape[i];
  return count;
}

void Tensor::decode(float* out, ThreadPool* pool) const {
  decode_rows(*codec, reinterpret_cast<const uint8_t*>(data.data()), rows(), columns(), pool, out);
}

File::File(const std::filesystem::path& path) : file_(std::make_shared<const MappedFile>(path)) {
  const std::span<const std::byte> bytes = file_->bytes();
  Cursor in(bytes, path.string());
  version_ = read_version(in);
  const uint64_t tensors = in.count(kTensorBytesMin, "tensors");
  const uint64_t keys = in.count(kKeyBytesMin, "keys");
  metadata_ = read_metadata(in, keys);
  const uint64_t alignment = read_alignment(metadata_, in);
  const auto padded = [&](uint64_t size) { return (size + alignment - 1) / alignment * alignment; };

  uint64_t next = 0;
  for (uint64_t i = 0; i < tensors; ++i) {
    uint64_t offset = 0;
    Tensor tensor = read_tensor(in, &offset);
    const std::string name = quote_name(tensor.name);
    if (!places_.emplace(tensor.name, tensors_.size()).second)
      in.fail(str("tensor ", name, " is there twice"));
    if (offset != next)
      in.fail(str("tensor ", name, " lies at offset ", offset, ", expected ", next,
                  " (behind the one before it)"));
    if (tensor.bytes() > bytes.size() || next > bytes.size())
      in.fail(str("tensor ", name, " has ", tensor.bytes(), " bytes, the whole file ", bytes.size()));
    next += padded(tensor.bytes());
    tensors_.push_back(std::move(tensor));
  }

  uint64_t at = padded(in.at());
  for (Tensor& tensor : tensors_) {
    const uint64_t size = tensor.bytes();
    if (at > bytes.size() || size > bytes.size() - at) {
      in.fail(str("tensor ", quote_name(tensor.name), " takes bytes ", at, " to ", at + size,
                  ", the file has ", bytes.size()));
    }
    tensor.data = bytes.subspan(at, size);
    at += padded(size);
  }
  end_ = at;
}

const Tensor* File::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &tensors_[found->second];
}

const Tensor& File::tensor(std::string_view name) const {
  if (const Tensor* found = find(name)) return *found;
  throw Error(ErrorKind::invalid_argument, path().string(), "no tensor " + quote_name(name));
}

}  // namespace gramian::gguf
