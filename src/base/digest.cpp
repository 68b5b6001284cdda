#include "base/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <vector>

namespace gramian {
namespace {

constexpr size_t kPart = size_t{16} << 20;

XXH128_canonical_t part_digest(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return canonical;
}

std::string hexadecimal(const XXH128_canonical_t& canonical) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

std::string digest(std::span<const std::byte> bytes, ThreadPool* pool) {
  if (bytes.size() <= kPart) return hexadecimal(part_digest(bytes));
  std::vector<XXH128_canonical_t> parts((bytes.size() + kPart - 1) / kPart);
  const auto task = [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kPart;
    parts[static_cast<size_t>(i)] = part_digest(bytes.subspan(begin, std::min(kPart, bytes.size() - begin)));
  };
  const auto count = static_cast<int64_t>(parts.size());
  if (pool != nullptr) {
    pool->run(count, task);
  } else {
    for (int64_t i = 0; i < count; ++i) task(i);
  }
  return hexadecimal(part_digest(std::as_bytes(std::span(parts))));
}

std::string digest(std::string_view text) { return digest(std::as_bytes(std::span(text))); }

}  // namespace gramian
