#include "solve/factor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// Columns per tile: large enough for matrix products at full speed, small enough that the work inside the
// diagonal tiles (LAPACK, half as fast) does not count.
constexpr int64_t kTile = 256;

// Up to here U is computed in float64 and rounded once, so its bytes do not depend on the BLAS or on the
// number of threads and rank-deficient matrices lose no digits. Beyond, twice the time and memory would tell.
constexpr int64_t kDoubleColumns = 2048;

// The columns of tile `index`; the first tile takes what is left, since the work starts at the end.
struct Tiling {
  explicit Tiling(int64_t size) {
    for (int64_t end = size; end > 0; end -= kTile) edges.insert(edges.begin(), end);
    edges.insert(edges.begin(), 0);
  }
  int64_t count() const { return static_cast<int64_t>(edges.size()) - 1; }
  at::Tensor tile(const at::Tensor& matrix, int64_t row, int64_t column) const {
    return span(matrix, row, row + 1, column);
  }
  // Rows of tiles [from, to) in the columns of one tile.
  at::Tensor span(const at::Tensor& matrix, int64_t from, int64_t to, int64_t column) const {
    return matrix.slice(0, edges[from], edges[to]).slice(1, edges[column], edges[column + 1]);
  }
  std::vector<int64_t> edges;
};

at::Tensor flipped(const at::Tensor& matrix) { return matrix.flip({0, 1}); }

// Overwrites the upper triangle of `a` (symmetric; the lower one is not read) by R, upper triangular, R Rᵀ =
// a, with the diagonal tiles replaced by their inverses, tile columns from last to first. False when `a` is
// not positive definite.
bool reverse_cholesky(const at::Tensor& a, const Tiling& tiles) {
  for (int64_t k = tiles.count() - 1; k >= 0; --k) {
    const at::Tensor diagonal = tiles.tile(a, k, k);
    // A flipped upper triangle is a lower one: the part LAPACK reads.
    const auto lower = tensor::cholesky(flipped(diagonal));
    if (!lower) return false;
    const at::Tensor identity = tensor::zeros(diagonal.sizes(), a.scalar_type()).fill_diagonal_(1);
    const at::Tensor inverse = tensor::solve_triangular(flipped(*lower), identity, true);
    diagonal.copy_(inverse);
    if (k == 0) break;
    const at::Tensor panel = tiles.span(a, 0, k, k);
    panel.copy_(panel.matmul(inverse.t()));
    for (int64_t j = 0; j < k; ++j) {
      tiles.span(a, 0, j + 1, j).addmm_(tiles.span(a, 0, j + 1, k), tiles.tile(a, j, k).t(), 1, -1);
    }
  }
  return true;
}

// Completes the inverse: tile columns from first to last, U_ik = -(Σ_{i<=m<k} U_im R_mk) U_kk. Row i reads
// rows i .. k-1 of the panel only, so it may overwrite its own.
void invert_upper(const at::Tensor& r, const Tiling& tiles) {
  for (int64_t k = 1; k < tiles.count(); ++k) {
    const at::Tensor diagonal = tiles.tile(r, k, k);
    for (int64_t i = 0; i < k; ++i) {
      const at::Tensor row =
          r.slice(0, tiles.edges[i], tiles.edges[i + 1]).slice(1, tiles.edges[i], tiles.edges[k]);
      tiles.tile(r, i, k).copy_(row.matmul(tiles.span(r, i, k, k)));
    }
    const at::Tensor panel = tiles.span(r, 0, k, k);
    panel.copy_(panel.matmul(diagonal).neg_());
  }
  r.triu_();
}

at::Tensor damped(const at::Tensor& hessian, const at::Tensor& diagonal, float lambda) {
  at::Tensor work = hessian.clone();
  work.diagonal().copy_(diagonal.add(lambda));
  return work;
}

// U for `hessian` with `diagonal` + lambda on its diagonal; undefined when that does not factor. Whether it
// factors is decided in fp32 in any case, as the peer does.
at::Tensor factor_once(const at::Tensor& hessian, const at::Tensor& diagonal, float lambda) {
  at::Tensor work = damped(hessian, diagonal, lambda);
  const Tiling tiles(work.size(0));
  if (!reverse_cholesky(work, tiles)) return {};
  if (work.size(0) <= kDoubleColumns) {
    work = damped(hessian, diagonal, lambda).to(at::kDouble);
    if (!reverse_cholesky(work, tiles)) return {};
  }
  invert_upper(work, tiles);
  work = work.to(at::kFloat);
  // One NaN or infinity anywhere shows in its row's sum.
  if (!work.abs().sum(1).isfinite().all().item<bool>()) return {};
  return work;
}

bool factors(const at::Tensor& hessian, const at::Tensor& diagonal, float lambda) {
  const at::Tensor work = damped(hessian, diagonal, lambda);
  return reverse_cholesky(work, Tiling(work.size(0)));
}

// damp, damp + step, ... below 1, each by one more addition in double, as the peer builds its list.
std::vector<double> damp_candidates(double damp, double step) {
  std::vector<double> candidates = {damp};
  if (!(step > 0)) return candidates;
  for (double next = damp + step; next < 1.0 && candidates.size() < 100000; next += step)
    candidates.push_back(next);
  return candidates;
}

struct Ladder {
  const at::Tensor& hessian;
  Factor& result;

  // One candidate list over one diagonal.
  bool climb(const at::Tensor& diagonal, const std::vector<double>& candidates) {
    // fp32 throughout, as the peer computes it.
    const float mean = diagonal.mean().item<float>();
    const auto lambda = [&](size_t i) { return static_cast<float>(candidates[i]) * mean; };
    const auto accept = [&](size_t i) {
      ++result.attempts;
      result.upper = factor_once(hessian, diagonal, lambda(i));
      if (result.upper.defined()) result.damp = lambda(i);
      return result.upper.defined();
    };
    if (accept(0)) return true;
    if (candidates.size() == 1) return false;
    const auto good_at = [&](size_t i) {
      ++result.attempts;
      return factors(hessian, diagonal, lambda(i));
    };
    size_t failed = 0, good = candidates.size() - 1;
    if (!good_at(good)) return false;
    while (good - failed > 1) {
      const size_t middle = failed + (good - failed) / 2;
      (good_at(middle) ? good : failed) = middle;
    }
    // A factor whose inverse overflows: more damping.
    while (good < candidates.size()) {
      if (accept(good++)) return true;
    }
    return false;
  }
};

}  // namespace

Factor factorize(const at::Tensor& hessian, double damp_percent, double damp_step) {
  if (hessian.dim() != 2 || hessian.size(0) != hessian.size(1) || hessian.size(0) == 0) {
    throw Error(ErrorKind::internal, "Hessian", "expected a square matrix");
  }
  if (!(damp_percent >= 0 && damp_percent < 1) || !(damp_step >= 0)) {
    throw Error(ErrorKind::invalid_argument, "damp",
                str("damp_percent ", damp_percent, ", damp_step ", damp_step),
                "use 0 <= damp_percent < 1 and damp_step >= 0");
  }
  const at::Tensor h = hessian.to(at::kFloat).contiguous();
  if (!h.abs().sum(1).isfinite().all().item<bool>() && !h.isfinite().all().item<bool>()) {
    throw Error(ErrorKind::numerical, "Hessian", "holds NaN or infinite entries",
                "check the calibration data");
  }
  Factor result;
  at::Tensor diagonal = h.diagonal().clone();
  result.dead = diagonal.eq(0);
  diagonal.masked_fill_(result.dead, 1);
  const std::vector<double> candidates = damp_candidates(damp_percent, damp_step);
  Ladder ladder{h, result};
  if (ladder.climb(diagonal, candidates)) return result;
  const double largest = diagonal.abs().max().item<double>();
  for (int level = 1; level <= 6; ++level) {
    const double floor = 1e-6 * largest * std::pow(10.0, level - 1);
    if (ladder.climb(diagonal.add(floor).clamp_min(floor), candidates)) return result;
  }
  result.damp = 0;
  return result;
}

int64_t factor_bytes(int64_t columns) {
  // In float64: the fp32 trial, its damped copy and the double one; beyond, the work and one copy of it.
  return (columns <= kDoubleColumns ? 16 : 8) * columns * columns;
}

}  // namespace gramian
