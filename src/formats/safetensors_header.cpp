#include "formats/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "formats/json.h"
#include "formats/json_walker.h"

namespace gramian::safetensors {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRemedy = "download or write the file again";
constexpr uint64_t kInt64Max = std::numeric_limits<int64_t>::max();

class HeaderReader : public JsonWalker {
 public:
  Header take() { return std::move(header_); }

 private:
  enum class Level { top, metadata, tensor, shape, offsets, ignored };

  void on_open(bool is_object) override {
    if (levels_.empty()) {
      if (!is_object) fail("expected an object of tensors");
      levels_.push_back(Level::top);
      return;
    }
    switch (levels_.back()) {
      case Level::top:
        if (!is_object) fail("expected an object for " + quote_name(name_) + ", found an array");
        if (name_ == "__metadata__") {
          levels_.push_back(Level::metadata);
        } else {
          if (name_.find('\0') != std::string::npos) fail("NUL in the tensor name " + quote_name(name_));
          entry_ = Entry();
          entry_.name = name_;
          ignored_ = 0;
          shape_seen_ = dtype_seen_ = offsets_seen_ = false;
          levels_.push_back(Level::tensor);
        }
        return;
      case Level::tensor:
        if (field_ == "dtype") fail("expected a string as dtype of " + quote_name(name_));
        if ((field_ == "shape" || field_ == "data_offsets") && is_object) fail(expected_integers());
        shape_seen_ |= field_ == "shape";
        levels_.push_back(field_ == "shape"          ? Level::shape
                          : field_ == "data_offsets" ? Level::offsets
                                                     : Level::ignored);
        offset_count_ = 0;
        return;
      case Level::metadata:
        fail("expected only strings in __metadata__");
      case Level::shape:
      case Level::offsets:
        fail(expected_integers());
      case Level::ignored:
        ignore();
        levels_.push_back(Level::ignored);
    }
  }

  void on_close() override {
    const Level closed = levels_.back();
    levels_.pop_back();
    if (closed == Level::offsets) {
      if (offset_count_ != 2) fail("expected two data_offsets of " + quote_name(name_));
      offsets_seen_ = true;
    }
    if (closed != Level::tensor) return;
    const char* missing = !dtype_seen_     ? "dtype"
                          : !shape_seen_   ? "shape"
                          : !offsets_seen_ ? "data_offsets"
                                           : nullptr;
    if (missing != nullptr) fail(str("tensor ", quote_name(name_), " has no ", missing));
    header_.entries.push_back(std::move(entry_));
  }

  void on_key(std::string& key) override { (levels_.back() == Level::top ? name_ : field_) = std::move(key); }

  void on_scalar(Json&& value) override {
    if (levels_.empty()) fail("expected an object of tensors");
    switch (levels_.back()) {
      case Level::top:
        // The reference implementation reads null metadata as none.
        if (name_ == "__metadata__" && value.is_null()) return;
        fail("expected an object for " + quote_name(name_));
      case Level::metadata:
        if (!value.is_string()) fail("expected only strings in __metadata__");
        header_.metadata.emplace(field_, value.get<std::string>());
        return;
      case Level::tensor:
        if (field_ == "shape" || field_ == "data_offsets") fail(expected_integers());
        field_ == "dtype" ? read_dtype(value) : ignore();
        return;
      case Level::shape:
        // A 65th dimension is more than LibTorch's iterators take.
        if (entry_.shape.size() == 64) fail("more than 64 dimensions in tensor " + quote_name(name_));
        entry_.shape.push_back(static_cast<int64_t>(read_integer(value)));
        return;
      case Level::offsets:
        if (offset_count_ == 2) fail("expected two data_offsets of " + quote_name(name_));
        (offset_count_ == 0 ? entry_.begin : entry_.end) = read_integer(value);
        ++offset_count_;
        return;
      case Level::ignored:
        ignore();
        return;
    }
  }

  // Fields that the format may grow are skipped; a limit keeps a hostile header from costing seconds.
  void ignore() {
    constexpr int kIgnoredMax = 64;
    if (++ignored_ > kIgnoredMax) fail("too many unknown fields of tensor " + quote_name(name_));
  }

  void read_dtype(const Json& value) {
    if (!value.is_string()) fail("expected a string as dtype of " + quote_name(name_));
    const auto& text = value.get_ref<const std::string&>();
    const std::optional<DType> dtype = dtype_from_name(text);
    if (!dtype) {
      fail("unknown dtype " + quote_name(text) + " of tensor " + quote_name(name_),
           "convert it to a plain type such as BF16");
    }
    entry_.dtype = *dtype;
    dtype_seen_ = true;
  }

  // Numbers with a sign, a fraction, an exponent or beyond u64 are not of the unsigned kind.
  uint64_t read_integer(const Json& value) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kInt64Max) fail(expected_integers());
    return value.get<uint64_t>();
  }

  std::string expected_integers() const {
    return str("expected a list of integers from 0 to 2^63-1 as ", field_, " of tensor ", quote_name(name_));
  }

  Header header_;
  std::vector<Level> levels_;
  std::string name_;
  std::string field_;
  Entry entry_;
  bool dtype_seen_ = false;
  bool shape_seen_ = false;
  bool offsets_seen_ = false;
  int offset_count_ = 0;
  int ignored_ = 0;
};

std::string describe(const Entry& entry) {
  return str("tensor ", quote_name(entry.name), " [", entry.begin, ", ", entry.end, ")");
}

void check_size(const Entry& entry, const std::string& where) {
  if (entry.begin > entry.end) {
    throw Error(ErrorKind::corrupt_data, where, describe(entry) + " ends before it begins", kRemedy);
  }
  const std::optional<uint64_t> expected = tensor_bytes(entry.dtype, entry.shape);
  if (!expected) {
    throw Error(ErrorKind::corrupt_data, where, "the shape of " + describe(entry) + " overflows 2^63 bytes",
                kRemedy);
  }
  if (*expected != entry.end - entry.begin) {
    throw Error(ErrorKind::corrupt_data, where,
                str("shape and dtype ", dtype_name(entry.dtype), " of ", describe(entry), " need ", *expected,
                    " bytes, data_offsets give ", entry.end - entry.begin),
                kRemedy);
  }
}

}  // namespace

std::optional<uint64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape) {
  bool empty = false;
  // Strides are products of the other dimensions even where one dimension is 0.
  uint64_t span = dtype_bytes(dtype);
  for (const int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    const auto size = static_cast<uint64_t>(dim);
    empty = empty || size == 0;
    if (__builtin_mul_overflow(span, std::max<uint64_t>(size, 1), &span) || span > kInt64Max)
      return std::nullopt;
  }
  return empty ? 0 : span;
}

Header parse_header(std::string_view text, uint64_t data_bytes, const std::string& where) {
  // Entries nest three deep; the rest is room for fields that the format may grow.
  constexpr size_t kDepthMax = 16;
  HeaderReader reader;
  reader.walk(text, where, kDepthMax);
  Header header = reader.take();

  for (const Entry& entry : header.entries) check_size(entry, where);
  // Empty tensors come before the one that begins at the same place.
  std::sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t covered = 0;
  for (const Entry& entry : header.entries) {
    if (entry.begin != covered) {
      throw Error(ErrorKind::corrupt_data, where,
                  str(describe(entry),
                      entry.begin < covered ? " overlaps another tensor" : " leaves a hole before it",
                      ": expected it to begin at ", covered),
                  kRemedy);
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    const uint64_t before = 8 + text.size();
    throw Error(ErrorKind::corrupt_data, where,
                str(covered > data_bytes ? "truncated" : "extra bytes after the last tensor",
                    ": the header declares a file of ", before + covered, " bytes, the file has ",
                    before + data_bytes),
                kRemedy);
  }
  return header;
}

}  // namespace gramian::safetensors
