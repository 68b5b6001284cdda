// The neighbour of least distance, the first of equals, as its place in the tables: the innermost search of IQ2_XXS, with points in the
// lanes. Included by iq2_xxs_lanes.cpp inside its anonymous namespace.

namespace avx2 {

// A weight's distances for the levels 0, 1 and 2 stand in a vector (twice, and infinity for the padding), from which eight points take
// theirs at once.
[[gnu::target("avx2")]] inline uint32_t nearest_neighbour(const Tables& tables, Neighbours list,
                                                          const float* a, const float* weight,
                                                          float scale) noexcept {
  constexpr float kPad = __builtin_inff();
  const __m256 values = scale * __m256{1, 3, 5, kPad, 1, 3, 5, kPad};
  __m256 distances[kGroup];
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; ++i) {
    const __m256 t = values - a[i];
    distances[i] = weight[i] * t * t;
  }
  __m256 least = _mm256_set1_ps(kPad);
  __m256i place = _mm256_setzero_si256();
  __m256i here = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int n = 0; n < list.count; n += 8) {
    const auto* stored = reinterpret_cast<const __m128i*>(tables.codes.data() + list.first + n);
    __m256i codes = _mm256_cvtepu16_epi32(_mm_loadu_si128(stored));
    // The lowest two bits choose, within each half of the vector.
    __m256 distance = _mm256_permutevar_ps(distances[0], codes);
#pragma GCC unroll 8
    for (int i = 1; i < kGroup; ++i) {
      codes = _mm256_srli_epi32(codes, 2);
      distance += _mm256_permutevar_ps(distances[i], codes);
    }
    const __m256 less = _mm256_cmp_ps(distance, least, _CMP_LT_OQ);
    least = _mm256_blendv_ps(least, distance, less);
    place = _mm256_blendv_epi8(place, here, _mm256_castps_si256(less));
    here = _mm256_add_epi32(here, _mm256_set1_epi32(8));
  }
  __m256 minimum = _mm256_min_ps(least, _mm256_permute2f128_ps(least, least, 1));
  minimum = _mm256_min_ps(minimum, _mm256_permute_ps(minimum, 0x4e));
  minimum = _mm256_min_ps(minimum, _mm256_permute_ps(minimum, 0xb1));
  alignas(32) int places[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(places), place);
  int equal = _mm256_movemask_ps(_mm256_cmp_ps(least, minimum, _CMP_EQ_OQ));
  int first = places[__builtin_ctz(static_cast<unsigned>(equal) | 0x100u) & 7];
  for (equal &= equal - 1; equal > 0; equal &= equal - 1) {
    const int other = places[__builtin_ctz(static_cast<unsigned>(equal))];
    first = other < first ? other : first;
  }
  return list.first + static_cast<uint32_t>(first);
}

}  // namespace avx2

namespace avx512 {

// Two weights' distances for all pairs of levels stand in a vector, so that sixteen points need four of them. That sums in another order
// than the text: where a second point comes within what rounding can do (seven sums, each off by 2^-24 at most, in both orders), the exact search
// decides.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] inline uint32_t nearest_neighbour(
    const Tables& tables, Neighbours list, const float* a, const float* weight, float scale) noexcept {
  constexpr float kPad = 1e30f, kDoubt = 1.000002f, kSmallest = 1e-30f;
  const __m512i four = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
  const __m512 values = _mm512_broadcast_f32x4(_mm_setr_ps(scale, 3 * scale, 5 * scale, kPad));
  __m512 pairs[kGroup / 2];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m512 some_a = _mm512_permutexvar_ps(four, _mm512_castps128_ps512(_mm_loadu_ps(a + 4 * half)));
    const __m512 some_weight =
        _mm512_permutexvar_ps(four, _mm512_castps128_ps512(_mm_loadu_ps(weight + 4 * half)));
    const __m512 t = values - some_a;
    const __m512 distances = some_weight * t * t;
    const __m512i eight = _mm512_set1_epi32(8), next = _mm512_set1_epi32(4);
    pairs[2 * half] = _mm512_permutexvar_ps(low, distances) +
                      _mm512_permutexvar_ps(_mm512_add_epi32(four, next), distances);
    pairs[2 * half + 1] =
        _mm512_permutexvar_ps(_mm512_add_epi32(low, eight), distances) +
        _mm512_permutexvar_ps(_mm512_add_epi32(_mm512_add_epi32(four, next), eight), distances);
  }
  const __m512 infinite = _mm512_set1_ps(__builtin_inff());
  __m512 least = infinite, second = infinite;
  __m512i place = _mm512_setzero_si512();
  __m512i here = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int n = 0; n < list.count; n += 16) {
    const auto* stored = reinterpret_cast<const __m256i*>(tables.codes.data() + list.first + n);
    const __m512i codes = _mm512_cvtepu16_epi32(_mm256_loadu_si256(stored));
    // The lowest four bits choose.
    const __m512 distance = (_mm512_permutexvar_ps(codes, pairs[0]) +
                             _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), pairs[1])) +
                            (_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 8), pairs[2]) +
                             _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 12), pairs[3]));
    second = _mm512_min_ps(second, _mm512_max_ps(distance, least));
    const __mmask16 less = _mm512_cmp_ps_mask(distance, least, _CMP_LT_OQ);
    least = _mm512_mask_mov_ps(least, less, distance);
    place = _mm512_mask_mov_epi32(place, less, here);
    here = _mm512_add_epi32(here, _mm512_set1_epi32(16));
  }
  const float minimum = _mm512_reduce_min_ps(least);
  const __m512 limit = _mm512_set1_ps(minimum * kDoubt);
  const unsigned near = _mm512_cmp_ps_mask(least, limit, _CMP_LE_OQ);
  const unsigned also = _mm512_cmp_ps_mask(second, limit, _CMP_LE_OQ);
  if (also != 0 || near == 0 || (near & (near - 1)) != 0 || !(minimum > kSmallest))
    return avx2::nearest_neighbour(tables, list, a, weight, scale);
  alignas(64) uint32_t places[16];
  _mm512_store_si512(places, place);
  return list.first + places[__builtin_ctz(near)];
}

}  // namespace avx512
