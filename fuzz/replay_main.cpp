// Runs a fuzz target without libFuzzer: every file of a corpus folder as it is, then with random damage.
//   <target> FOLDER [MUTATIONS per file, default 2000] [SEED, default 1]
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

void damage(Bytes& bytes, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (size_t edits = 1 + below(3); edits > 0 && !bytes.empty(); --edits) {
    const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size()));
    switch (below(6)) {
      case 0:
        *at ^= static_cast<uint8_t>(1 << below(8));
        break;
      case 1:
        *at = static_cast<uint8_t>(random());
        break;
      case 2:
        bytes.erase(at);
        break;
      case 3:
        bytes.insert(at, *at);
        break;
      case 4:
        *at = static_cast<uint8_t>("0123456789-.e[]{}\",:"[below(20)]);
        break;
      case 5:
        bytes.resize(static_cast<size_t>(at - bytes.begin()));
        break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || !std::filesystem::is_directory(argv[1])) {
    std::fprintf(stderr, "usage: %s FOLDER [MUTATIONS] [SEED]\n", argv[0]);
    return 2;
  }
  const long mutations = argc > 2 ? std::stol(argv[2]) : 2000;
  std::mt19937_64 random(argc > 3 ? std::stoull(argv[3]) : 1);
  long files = 0;
  std::set<std::filesystem::path> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) corpus.insert(entry.path());
  for (const std::filesystem::path& path : corpus) {
    std::ifstream in(path, std::ios::binary);
    const Bytes seed{std::istreambuf_iterator<char>(in), {}};
    LLVMFuzzerTestOneInput(seed.data(), seed.size());
    for (long i = 0; i < mutations; ++i) {
      Bytes bytes = seed;
      damage(bytes, random);
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
    ++files;
  }
  std::printf("%ld files, %ld mutations each\n", files, mutations);
  return files > 0 ? 0 : 1;
}
