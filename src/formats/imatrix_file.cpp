#include "formats/imatrix_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf/gguf.h"
#include "formats/json.h"

namespace gramian {
namespace {

constexpr const char* kRemedy = "measure the importance again";
constexpr const char* kSums = ".in_sum2";
constexpr const char* kCounts = ".counts";

void check_values(const std::vector<float>& values, const char* what, const std::string& name,
                  const std::string& where) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && values[i] >= 0) continue;
    throw Error(ErrorKind::corrupt_data, where,
                str(what, " ", i, " of ", quote_name(name), " is ", values[i],
                    ", expected a finite value that is not negative"),
                kRemedy);
  }
}

// Sums of squares of nothing are 0.
void check_counts(const ImportanceSums& sums, const std::string& name, uint64_t begin,
                  const std::string& where) {
  const auto in = static_cast<size_t>(sums.in_features());
  for (size_t i = 0; i < sums.sums.size(); ++i) {
    if (sums.sums[i] == 0 || sums.counts[i / in] > 0) continue;
    throw Error(ErrorKind::corrupt_data, where,
                str("sum ", i, " of ", quote_name(name), " is ", sums.sums[i], " (at byte ",
                    begin + i * sizeof(float), "), but the count of its tokens is 0"),
                kRemedy);
  }
}

std::vector<float> read_floats(const gguf::File& file, const std::string& name) {
  const gguf::Tensor* tensor = file.find(name);
  const std::string where = file.path().string();
  if (tensor == nullptr)
    throw Error(ErrorKind::corrupt_data, where, "no tensor " + quote_name(name), kRemedy);
  if (tensor->codec->name != "F32") {
    throw Error(ErrorKind::corrupt_data, where,
                str("tensor ", quote_name(name), " is ", tensor->codec->name, ", expected F32"), kRemedy);
  }
  std::vector<float> values(static_cast<size_t>(tensor->rows() * tensor->columns()));
  tensor->decode(values.data());
  return values;
}

uint32_t read_u32(const gguf::File& file, const char* key) {
  const auto value = file.metadata().integer(key);
  if (!value.has_value() || !std::in_range<uint32_t>(*value)) {
    throw Error(ErrorKind::corrupt_data, file.path().string(), str("expected the key ", quote_name(key)),
                kRemedy);
  }
  return static_cast<uint32_t>(*value);
}

ImportanceMatrix read_gguf(const std::filesystem::path& path) {
  const gguf::File file(path);
  const std::string where = path.string();
  const std::string* type = file.metadata().string("general.type");
  if (type == nullptr || *type != "imatrix") {
    throw Error(ErrorKind::corrupt_data, where,
                str("expected an importance matrix (general.type \"imatrix\"), found ",
                    type == nullptr ? std::string("none") : quote_name(*type)),
                "pass the file that gramian imatrix or llama-imatrix wrote");
  }
  ImportanceMatrix matrix;
  if (const auto* datasets = file.metadata().array<std::string>("imatrix.datasets"))
    matrix.datasets = *datasets;
  matrix.chunks = read_u32(file, "imatrix.chunk_count");
  matrix.chunk_size = read_u32(file, "imatrix.chunk_size");
  for (const gguf::Tensor& tensor : file.tensors()) {
    if (tensor.name.ends_with(kCounts) &&
        file.find(tensor.name.substr(0, tensor.name.size() - std::strlen(kCounts)) + kSums) != nullptr) {
      continue;
    }
    if (!tensor.name.ends_with(kSums)) {
      throw Error(ErrorKind::corrupt_data, where,
                  str("tensor ", quote_name(tensor.name), " is neither sums nor the counts of some"),
                  kRemedy);
    }
    const std::string name = tensor.name.substr(0, tensor.name.size() - std::strlen(kSums));
    ImportanceSums sums{read_floats(file, tensor.name), read_floats(file, name + kCounts)};
    if (static_cast<int64_t>(sums.counts.size()) != tensor.rows()) {
      throw Error(ErrorKind::corrupt_data, where,
                  str(quote_name(name), " has sums of ", tensor.rows(), " experts and counts of ",
                      sums.counts.size()),
                  kRemedy);
    }
    check_values(sums.sums, "sum", name, where);
    check_values(sums.counts, "count", name, where);
    check_counts(sums, name, static_cast<uint64_t>(tensor.data.data() - file.mapping()->bytes().data()),
                 where);
    matrix.weights.emplace(name, std::move(sums));
  }
  if (const uint64_t size = file.mapping()->bytes().size(); size > file.end()) {
    throw Error(ErrorKind::corrupt_data, where,
                str("ends at byte ", file.end(), " by its header, the file has ", size), kRemedy);
  }
  return matrix;
}

// The legacy form's bytes, one after the other.
class LegacyReader {
 public:
  LegacyReader(std::span<const std::byte> bytes, std::string where)
      : size_(bytes.size()), left_(bytes), where_(std::move(where)) {}

  size_t left() const { return left_.size(); }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::corrupt_data, where_, str(what, " (at byte ", size_ - left_.size(), ")"),
                "pass an importance matrix that gramian imatrix or llama-imatrix wrote");
  }
  // A count of things of `bytes_min` bytes or more each, at least `min`.
  size_t count(size_t bytes_min, int32_t min, const char* what) {
    int32_t value = 0;
    copy(&value, sizeof(value), what);
    if (value < min || static_cast<size_t>(value) > left_.size() / bytes_min)
      fail(str("expected a number of ", what, ", found ", value, " with ", left_.size(), " bytes left"));
    return static_cast<size_t>(value);
  }
  int32_t number(const char* what) {
    int32_t value = 0;
    copy(&value, sizeof(value), what);
    return value;
  }
  std::string text(size_t size) {
    std::string text(size, '\0');
    copy(text.data(), size, "a name");
    return text;
  }
  std::vector<float> floats(size_t size) {
    std::vector<float> values(size);
    copy(values.data(), size * sizeof(float), "values");
    return values;
  }

 private:
  void copy(void* to, size_t size, const char* what) {
    if (size > left_.size()) fail(str("ends within ", what));
    if (size > 0) std::memcpy(to, left_.data(), size);
    left_ = left_.subspan(size);
  }

  size_t size_;
  std::span<const std::byte> left_;
  std::string where_;
};

ImportanceMatrix read_legacy(const MappedFile& file, uint32_t chunk_size) {
  const std::string where = file.path().string();
  LegacyReader in(file.bytes(), where);
  ImportanceMatrix matrix;
  matrix.chunk_size = chunk_size;
  const size_t entries = in.count(4 + 1 + 4 + 4 + 4, 1, "weights");
  int32_t calls_max = 0;
  for (size_t i = 0; i < entries; ++i) {
    const std::string name = in.text(in.count(1, 1, "bytes of a name"));
    const int32_t calls = in.number("calls");
    if (calls < 1) in.fail(str(quote_name(name), " has ", calls, " calls, expected at least 1"));
    calls_max = std::max(calls_max, calls);
    ImportanceSums sums;
    sums.sums = in.floats(in.count(sizeof(float), 1, "values"));
    check_values(sums.sums, "value", name, where);
    // sum / count = value / calls.
    const auto rows = static_cast<float>(chunk_size);
    for (float& value : sums.sums) value *= rows;
    sums.counts = {static_cast<float>(calls) * rows};
    check_values(sums.sums, "value", name, where);
    if (!matrix.weights.emplace(name, std::move(sums)).second)
      in.fail(str(quote_name(name), " is there twice"));
  }
  matrix.chunks = static_cast<uint32_t>(calls_max);
  if (in.left() > 0) {
    const int32_t chunks = in.number("chunks");
    if (chunks < 1) in.fail(str("has ", chunks, " chunks, expected at least 1"));
    matrix.chunks = static_cast<uint32_t>(chunks);
  }
  if (in.left() > 0) matrix.datasets.push_back(in.text(in.count(1, 0, "bytes of a dataset's name")));
  if (in.left() > 0) in.fail(str(in.left(), " bytes too many at its end"));
  return matrix;
}

void put(std::string& out, const void* from, size_t bytes) {
  out.append(static_cast<const char*>(from), bytes);
}
void put_count(std::string& out, uint64_t value) {
  GRAMIAN_CHECK(std::in_range<int32_t>(value), "too many for the legacy form: ", value);
  const auto narrow = static_cast<int32_t>(value);
  put(out, &narrow, sizeof(narrow));
}

}  // namespace

std::vector<float> ImportanceSums::importance(int64_t expert) const {
  const auto in = static_cast<size_t>(in_features()), e = static_cast<size_t>(expert);
  GRAMIAN_CHECK(e < counts.size(), "expert ", expert, " of ", counts.size());
  std::vector<float> mean(in, 1.0f);
  for (size_t j = 0; j < in && counts[e] > 0; ++j) mean[j] = sums[e * in + j] / counts[e];
  return mean;
}

void ImportanceMatrix::add(const ImportanceMatrix& other, const std::string& where) {
  for (const auto& [name, theirs] : other.weights) {
    const auto [place, added] = weights.emplace(name, theirs);
    if (added) continue;
    ImportanceSums& ours = place->second;
    if (ours.sums.size() != theirs.sums.size() || ours.counts.size() != theirs.counts.size()) {
      throw Error(
          ErrorKind::invalid_argument, where,
          str(quote_name(name), " has ", theirs.experts(), " x ", theirs.in_features(), " sums, expected ",
              ours.experts(), " x ", ours.in_features(), " as in the files before it"),
          "merge files of one model only");
    }
    for (size_t i = 0; i < ours.sums.size(); ++i) ours.sums[i] += theirs.sums[i];
    for (size_t i = 0; i < ours.counts.size(); ++i) ours.counts[i] += theirs.counts[i];
  }
  chunks += other.chunks;
  datasets.insert(datasets.end(), other.datasets.begin(), other.datasets.end());
}

ImportanceMatrix read_importance(const std::filesystem::path& path, uint32_t legacy_chunk_size) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0) return read_gguf(path);
  return read_legacy(file, legacy_chunk_size);
}

void split_experts(ImportanceSums& sums, int64_t experts, int64_t in_features, const std::string& where) {
  if (sums.experts() == experts && sums.in_features() == in_features) return;
  if (sums.experts() != 1 || experts < 1 || in_features < 1 || sums.in_features() % in_features != 0 ||
      sums.in_features() / in_features != experts) {
    throw Error(ErrorKind::invalid_argument, where,
                str("has importance of ", sums.experts(), " x ", sums.in_features(), " columns, expected ",
                    experts, " x ", in_features),
                "measure the importance of this model");
  }
  sums.counts.assign(static_cast<size_t>(experts), sums.counts.front());
}

void write_importance(const std::filesystem::path& path, const ImportanceMatrix& matrix) {
  gguf::Metadata metadata;
  metadata.set("general.type", std::string("imatrix"));
  metadata.set("imatrix.datasets", gguf::Array(matrix.datasets));
  metadata.set("imatrix.chunk_count", matrix.chunks);
  metadata.set("imatrix.chunk_size", matrix.chunk_size);
  std::vector<gguf::TensorType> tensors;
  std::vector<const std::vector<float>*> values;
  const Codec* f32 = find_codec("F32");
  for (const auto& [name, sums] : matrix.weights) {
    check_values(sums.sums, "sum", name, path.string());
    check_values(sums.counts, "count", name, path.string());
    // A dimension of one expert is left out, as llama.cpp leaves it out.
    const bool one = sums.experts() == 1;
    using Shape = std::vector<int64_t>;
    tensors.push_back(
        {name + kSums, f32, one ? Shape{sums.in_features()} : Shape{sums.experts(), sums.in_features()}});
    tensors.push_back({name + kCounts, f32, one ? Shape{1} : Shape{sums.experts(), 1}});
    values.push_back(&sums.sums);
    values.push_back(&sums.counts);
  }
  gguf::write(path, metadata, tensors,
              [&](size_t i, const gguf::Append& append) { append(std::as_bytes(std::span(*values[i]))); });
}

void write_legacy_importance(const std::filesystem::path& path, const ImportanceMatrix& matrix) {
  std::string out;
  put_count(out, matrix.weights.size());
  for (const auto& [name, sums] : matrix.weights) {
    check_values(sums.sums, "sum", name, path.string());
    check_values(sums.counts, "count", name, path.string());
    const float most = *std::max_element(sums.counts.begin(), sums.counts.end());
    const float calls = std::max(1.0f, std::ceil(most / static_cast<float>(std::max(1u, matrix.chunk_size))));
    put_count(out, name.size());
    out += name;
    put_count(out, static_cast<uint64_t>(calls));
    put_count(out, sums.sums.size());
    for (int64_t e = 0; e < sums.experts(); ++e) {
      for (const float mean : sums.importance(e)) {
        const float value = mean * calls;
        put(out, &value, sizeof(value));
      }
    }
  }
  put_count(out, matrix.chunks);
  const std::string dataset = matrix.datasets.empty() ? std::string() : matrix.datasets.front();
  put_count(out, dataset.size());
  out += dataset;
  write_atomically(path, out);
}

}  // namespace gramian
