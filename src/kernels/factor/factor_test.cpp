// Every level against the same elimination in float64, element by element, over awkward sizes.
#include "kernels/factor/factor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/parallel.h"

namespace gramian::factor {
namespace {

constexpr double kRounding = 0x1p-24;
constexpr float kUntouched = -77.5f;
constexpr int64_t kSizes[] = {1,  2,   15,  16,  17,  47,  48,  49,  63,  64,
                              65, 127, 129, 239, 240, 241, 511, 896, 1000};

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> all;
  for (const CpuLevel level : {CpuLevel::reference, CpuLevel::avx2, CpuLevel::avx512}) {
    if (level <= detected_cpu_level()) all.push_back(level);
  }
  return all;
}

std::string where(CpuLevel level, int64_t columns) {
  return std::string(name(level)) + " K " + std::to_string(columns);
}

struct Matrix {
  int64_t columns;
  std::vector<float> entries;  // [K][K]
  float& at(int64_t i, int64_t j) { return entries[static_cast<size_t>(i * columns + j)]; }
  float at(int64_t i, int64_t j) const { return entries[static_cast<size_t>(i * columns + j)]; }
};

// Σ of `rank` random rows x xᵀ / rank, their entries a shared value plus `spread` times one of their own, with `damp` of
// the mean diagonal added. Condition: about K / spread², or K / damp when the rank is low.
Matrix matrix(int64_t columns, int64_t rank, double spread, double damp) {
  std::mt19937 random(static_cast<unsigned>(columns));
  std::normal_distribution<double> normal;
  std::vector<double> sums(static_cast<size_t>(columns * columns)), x(static_cast<size_t>(columns));
  for (int64_t t = 0; t < rank; ++t) {
    const double shared = normal(random);
    for (double& value : x) value = shared + spread * normal(random);
    for (int64_t i = 0; i < columns; ++i) {
      double* row = sums.data() + i * columns;
      for (int64_t j = 0; j <= i; ++j) row[j] += x[i] * x[j];
    }
  }
  double trace = 0;
  for (int64_t i = 0; i < columns; ++i) trace += sums[i * columns + i];
  Matrix result = {columns, std::vector<float>(sums.size())};
  for (int64_t i = 0; i < columns; ++i) {
    sums[i * columns + i] += damp * trace / static_cast<double>(columns);
    for (int64_t j = 0; j <= i; ++j)
      result.at(i, j) = result.at(j, i) =
          static_cast<float>(sums[i * columns + j] / static_cast<double>(rank));
  }
  return result;
}

// U by the textbook: the last row of what is left over the root of its pivot is a row of Rᵀ; the rows above lose its
// multiples; the same steps on the identity give the inverse.
std::vector<double> exact(const Matrix& a) {
  const int64_t n = a.columns;
  std::vector<double> left(a.entries.begin(), a.entries.end()), upper(a.entries.size());
  for (int64_t k = n - 1; k >= 0; --k) {
    const double u = 1 / std::sqrt(left[k * n + k]);
    upper[k * n + k] = 1;
    for (int64_t j = 0; j <= k; ++j) left[k * n + j] *= u;
    for (int64_t j = k; j < n; ++j) upper[k * n + j] *= u;
    for (int64_t i = 0; i < k; ++i) {
      const double multiple = left[k * n + i];
      for (int64_t j = 0; j <= i; ++j) left[i * n + j] -= multiple * left[k * n + j];
      for (int64_t j = k; j < n; ++j) upper[i * n + j] -= multiple * upper[k * n + j];
    }
  }
  return upper;
}

// U in rows of K + 3 elements, the padding checked; nothing when a pivot failed.
std::optional<Matrix> inverted(CpuLevel level, const Matrix& a, int threads = 1) {
  const int64_t n = a.columns, stride = n + 3;
  std::vector<float> work(static_cast<size_t>(n * stride), kUntouched);
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(a.entries.begin() + i * n, i + 1, work.begin() + i * stride);
    // Only the lower triangle may matter.
    std::fill_n(work.begin() + i * stride + i + 1, n - i - 1, std::numeric_limits<float>::quiet_NaN());
  }
  ThreadPool pool(threads);
  if (!invert_factor(level, work.data(), n, stride, threads == 1 ? nullptr : &pool)) return std::nullopt;
  Matrix result = {n, std::vector<float>(a.entries.size())};
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(work.begin() + i * stride, n, result.entries.begin() + i * n);
    for (int64_t j = n; j < stride; ++j) EXPECT_EQ(work[i * stride + j], kUntouched) << where(level, n);
  }
  return result;
}

// A backward error of c roundings of A moves U A Uᵀ from the identity by c roundings of ‖A‖ ‖U‖², for which the traces
// stand. Measured on random signs: |U A Uᵀ x - x| in the root mean square.
double backward_error(const Matrix& a, const Matrix& upper) {
  const int64_t n = a.columns;
  std::mt19937 random(5);
  std::vector<double> x(n), z(n), az(n);
  for (double& value : x) value = random() % 2 == 0 ? 1 : -1;
  double trace = 0, squares = 0, sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    trace += a.at(i, i);
    for (int64_t j = i; j < n; ++j) {
      z[j] += upper.at(i, j) * x[i];
      squares += static_cast<double>(upper.at(i, j)) * upper.at(i, j);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) az[i] += static_cast<double>(a.at(i, j)) * z[j];
  }
  for (int64_t i = 0; i < n; ++i) {
    double row = -x[i];
    for (int64_t j = i; j < n; ++j) row += upper.at(i, j) * az[j];
    sum += row * row;
  }
  return std::sqrt(sum / static_cast<double>(n)) / (kRounding * trace * squares);
}

// Largest |ΔU_ij| over the row's diagonal entry, in roundings.
double forward_error(const Matrix& upper, const std::vector<double>& expected, CpuLevel level) {
  const int64_t n = upper.columns;
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) EXPECT_EQ(upper.at(i, j), 0.0f) << where(level, n);
    for (int64_t j = i; j < n; ++j) {
      const double error = std::abs(upper.at(i, j) - expected[i * n + j]) / expected[i * n + i];
      largest = error <= largest ? largest : error;  // NaN stays
    }
  }
  return largest / kRounding;
}

// Largest |ΔU_ij| in roundings of the row's diagonal entry, and a backward error as above; a random error of one rounding
// in each entry of A makes about 1 / K of it.
void expect_factor(const Matrix& a, double forward_bound) {
  const std::vector<double> expected = exact(a);
  for (const CpuLevel level : levels()) {
    const std::optional<Matrix> upper = inverted(level, a);
    ASSERT_TRUE(upper) << where(level, a.columns);
    EXPECT_LE(forward_error(*upper, expected, level), forward_bound) << where(level, a.columns);
    EXPECT_LE(backward_error(a, *upper), 2.0 / static_cast<double>(a.columns)) << where(level, a.columns);
  }
}

TEST(FactorKernel, MatchesFloat64OverAwkwardSizes) {
  for (const int64_t columns : kSizes) expect_factor(matrix(columns, 2 * columns + 5, 1, 0.01), 50);
}

// Condition 10^6: up to so many roundings.
TEST(FactorKernel, IllConditioned) {
  for (const int64_t columns : kSizes) {
    const double spread = std::sqrt(static_cast<double>(columns) * 1e-6);
    expect_factor(matrix(columns, 2 * columns + 5, spread, 0), 1e6);
  }
}

// A quarter of the rank; condition up to K / 0.005.
TEST(FactorKernel, RankDeficientWithDamping) {
  for (const int64_t columns : kSizes) expect_factor(matrix(columns, columns / 4 + 1, 1, 0.005), 5000);
}

// One tile is computed in float64 and rounded once.
TEST(FactorKernel, OneTileIsExactToItsRounding) {
  const Matrix a = matrix(kPanel, 2 * kPanel, 0.01, 0);
  const std::vector<double> expected = exact(a);
  for (const CpuLevel level : levels()) EXPECT_LE(forward_error(*inverted(level, a), expected, level), 4);
}

TEST(FactorKernel, BitsDoNotDependOnThreads) {
  for (const CpuLevel level : levels()) {
    for (const int64_t columns : {1, 65, 241, 700, 1000}) {
      const Matrix a = matrix(columns, 64, 1, 0.01);
      const std::optional<Matrix> one = inverted(level, a);
      ASSERT_TRUE(one);
      for (const int threads : {2, 3}) {
        const std::optional<Matrix> several = inverted(level, a, threads);
        ASSERT_TRUE(several);
        ASSERT_EQ(
            std::memcmp(one->entries.data(), several->entries.data(), one->entries.size() * sizeof(float)), 0)
            << where(level, columns) << " threads " << threads;
      }
    }
  }
}

TEST(FactorKernel, Avx2AndAvx512GiveTheSameBits) {
  if (detected_cpu_level() < CpuLevel::avx512) GTEST_SKIP() << "no AVX-512";
  for (const int64_t columns : {17, 241, 511}) {
    const Matrix a = matrix(columns, 64, 1, 0.01);
    EXPECT_EQ(inverted(CpuLevel::avx2, a)->entries, inverted(CpuLevel::avx512, a)->entries) << columns;
  }
}

// Wherever it stands in its tile and block.
TEST(FactorKernel, PivotsThatAreNotPositiveAndFiniteAreFound) {
  const float bad[] = {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  for (const CpuLevel level : levels()) {
    for (const int64_t columns : {1, 49, 300}) {
      for (const int64_t place : {int64_t{0}, columns / 2, columns - 1}) {
        for (const float pivot : bad) {
          Matrix a = {columns, std::vector<float>(static_cast<size_t>(columns * columns))};
          for (int64_t i = 0; i < columns; ++i) a.at(i, i) = 2;
          a.at(place, place) = pivot;
          EXPECT_FALSE(inverted(level, a)) << where(level, columns) << " at " << place << " " << pivot;
          EXPECT_FALSE(factors(level, a.entries.data(), columns, columns, nullptr)) << where(level, columns);
        }
      }
    }
  }
}

// [[I, x], [xᵀ, 1]] with |x|² < 1 is positive definite, with |x|² > 1 it is not: seen only at the first column, after
// all others were eliminated.
TEST(FactorKernel, AnIndefiniteMatrixIsFoundAtItsLastPivot) {
  for (const CpuLevel level : levels()) {
    for (const double norm : {0.99, 1.01}) {
      Matrix a = {400, std::vector<float>(160000)};
      for (int64_t i = 0; i < 400; ++i) {
        a.at(i, 0) = a.at(0, i) = static_cast<float>(std::sqrt(norm / 399));
        a.at(i, i) = 1;
      }
      EXPECT_EQ(inverted(level, a).has_value(), norm < 1) << name(level);
      EXPECT_EQ(factors(level, a.entries.data(), 400, 400, nullptr), norm < 1) << name(level);
    }
  }
}

TEST(FactorKernel, BothFunctionsAgreeOnWhatFactors) {
  for (const CpuLevel level : levels()) {
    for (const int64_t columns : {48, 96, 500}) {
      for (const double damp : {0.0, 1e-9, 1e-7, 1e-6, 1e-4}) {
        Matrix a = matrix(columns, 20, 1, damp);
        const bool expected = inverted(level, a).has_value();
        EXPECT_EQ(factors(level, a.entries.data(), columns, columns, nullptr), expected)
            << where(level, columns) << " damp " << damp;
      }
    }
  }
}

TEST(FactorKernel, WorkspaceIsAPackedBlockOfRows) {
  EXPECT_GE(workspace_bytes(4096), 4 * 4096 * kBlock);
  EXPECT_LE(workspace_bytes(4096), 4 * (4096 + kPanel + kBlock) * kBlock + (64 << 10));
}

}  // namespace
}  // namespace gramian::factor
