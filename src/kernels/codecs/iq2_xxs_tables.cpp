#include "kernels/codecs/iq2_xxs_tables.h"

#include <algorithm>

#include "kernels/codecs/iq2_xxs_grid.h"

namespace gramian::iq2_xxs {
namespace {

constexpr size_t kPadding = 16;

// Squares of level differences are in proportion to those of the values 1, 3 and 5.
void find_distances(const Tables& tables, int combination, std::array<uint8_t, 256>& distances) {
  distances.fill(0);
  for (int i = 0; i < kGroup; ++i, combination /= kLevels) {
    const int level = combination % kLevels;
    for (size_t p = 0; p < distances.size(); ++p) {
      const int difference = tables.levels[p][static_cast<size_t>(i)] - level;
      distances[p] = static_cast<uint8_t>(distances[p] + difference * difference);
    }
  }
}

Neighbours add_neighbours(Tables& tables, int combination) {
  std::array<uint8_t, 256> distances;
  find_distances(tables, combination, distances);
  const uint8_t nearest = *std::min_element(distances.begin(), distances.end());
  uint8_t second = 255;
  for (const uint8_t distance : distances) {
    if (distance > nearest) second = std::min(second, distance);
  }
  const auto first = static_cast<uint32_t>(tables.points.size());
  for (const uint8_t wanted : {nearest, second}) {
    for (size_t p = 0; p < distances.size(); ++p) {
      if (distances[p] != wanted) continue;
      tables.points.push_back(static_cast<uint8_t>(p));
      tables.codes.push_back(kGridCodes[p]);
    }
  }
  const auto count = static_cast<uint16_t>(tables.points.size() - first);
  while (tables.points.size() % kPadding != 0) {
    tables.points.push_back(0);
    tables.codes.push_back(0xffff);
  }
  return {first, count};
}

Tables make_tables() {
  Tables tables;
  tables.point.fill(-1);
  for (size_t p = 0; p < 256; ++p) {
    int combination = 0;
    for (int i = kGroup - 1; i >= 0; --i) {
      const auto level = static_cast<uint8_t>((kGridCodes[p] >> (2 * i)) & 3);
      tables.levels[p][static_cast<size_t>(i)] = level;
      tables.decoded[static_cast<size_t>(i)][p] = kDecoded[level];
      tables.values[p][static_cast<size_t>(i)] = kDecoded[level];
      combination = combination * kLevels + level;
    }
    tables.point[static_cast<size_t>(combination)] = static_cast<int16_t>(p);
  }
  for (unsigned code = 0; code < 128; ++code) {
    for (unsigned i = 0; i < kGroup; ++i) tables.sign_bits[code][i] = (all_signs(code) >> i & 1u) << 31;
  }
  for (int u = 0; u < kCombinations; ++u) {
    const auto place = static_cast<size_t>(u);
    tables.neighbours[place] = tables.point[place] < 0 ? add_neighbours(tables, u) : Neighbours{0, 0};
  }
  return tables;
}

}  // namespace

const Tables& tables() {
  static const Tables made = make_tables();
  return made;
}

}  // namespace gramian::iq2_xxs
