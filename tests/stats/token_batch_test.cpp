// Which tokens of a batch count: shapes, masks and pieces.
#include "stats/token_batch.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cpu_level.h"
#include "stats/hessian.h"
#include "stats/imatrix.h"
#include "stats/local_hessian.h"
#include "stats/support.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::make_rows;

// Tokens 0, 3, 6 ... do not count.
at::Tensor two_of_three(int64_t tokens) { return tensor::arange(tokens, at::kLong).remainder(3).ne(0); }

at::Tensor packed(const at::Tensor& rows, const at::Tensor& keep) {
  return rows.reshape({-1, rows.size(-1)}).index_select(0, keep.reshape({-1}).nonzero().squeeze(1));
}

// Every statistic of rows under a mask has the bits of the statistic of the rows that count alone.
TEST(TokenBatch, MaskedRowsAreAsGoodAsAbsent) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t tokens : {1, 5, 700, 9000}) {
      const int64_t columns = 33;
      const at::Tensor keep = two_of_three(tokens);
      const at::Tensor rows = make_rows(tokens, columns, 1).to(type);
      rows.masked_fill_(keep.logical_not().unsqueeze(1), nan);  // padding is not even looked at
      const at::Tensor expected = packed(rows, keep);
      HessianAccumulator hessian(columns, 1), hessian_packed(columns, 1);
      LocalHessianAccumulator local(columns, 1), local_packed(columns, 1);
      ImatrixAccumulator imatrix(columns, 1), imatrix_packed(columns, 1);
      const auto check = [&](auto& masked, auto& plain) {
        masked.add(0, rows, keep);
        plain.add(0, expected);
        EXPECT_EQ(masked.tokens(), expected.size(0));
        // LibTorch's form (reference level) ends its pieces elsewhere.
        if (cpu_level() >= CpuLevel::avx2) {
          EXPECT_TRUE(masked.merge().equal(plain.merge())) << tokens;
        } else {
          EXPECT_TRUE(masked.merge().allclose(plain.merge(), 1e-5, 1e-5)) << tokens;
        }
      };
      check(hessian, hessian_packed);
      check(local, local_packed);
      check(imatrix, imatrix_packed);
    }
  }
}

// e_0 and 2 e_1 count, 3 e_2 does not: closed form for every number of dimensions and type of mask.
TEST(TokenBatch, MasksOfEveryShapeInClosedForm) {
  at::Tensor rows = tensor::zeros({3, 3}, at::kFloat);
  rows.diagonal().copy_(tensor::arange(3, at::kFloat).add(1));
  at::Tensor expected = tensor::zeros({3, 3}, at::kFloat);
  expected.diagonal().slice(0, 0, 2).copy_(tensor::arange(2, at::kFloat).add(1).square());
  const at::Tensor flags = tensor::arange(3, at::kLong).lt(2);
  const std::vector<std::pair<at::Tensor, at::Tensor>> cases = {
      {rows, flags},
      {rows, flags.to(at::kLong)},
      {rows, flags.to(at::kByte)},
      {rows.reshape({1, 3, 3}), flags.reshape({1, 3})},
      {rows.reshape({3, 1, 3}), flags.reshape({3, 1})},
      {rows.reshape({1, 3, 3}), flags},  // flattened, as it follows tokens into expert inputs
      {rows.reshape({1, 1, 3, 3}), flags.reshape({1, 1, 3})}};
  for (const auto& [x, keep] : cases) {
    HessianAccumulator accumulator(3, 2);
    accumulator.add(1, x, keep);
    EXPECT_EQ(accumulator.tokens(), 2);
    EXPECT_TRUE(accumulator.merge().equal(expected)) << x.dim() << "-D";
  }
}

TEST(TokenBatch, OneVectorWithAndWithoutItsFlag) {
  const at::Tensor vector = tensor::arange(4, at::kFloat);
  for (const at::Tensor& keep : {tensor::full({}, 1, at::kBool), tensor::full({1}, 1, at::kLong)}) {
    ImatrixAccumulator accumulator(4, 1);
    accumulator.add(0, vector, keep);
    accumulator.add(0, vector, keep.to(at::kLong).mul(0));
    accumulator.add(0, vector);
    EXPECT_EQ(accumulator.tokens(), 2);
    EXPECT_TRUE(accumulator.merge().equal(vector.to(at::kDouble).square().mul(2)));
  }
}

TEST(TokenBatch, NothingKeptIsAnEmptyBatch) {
  HessianAccumulator accumulator(5, 1);
  const at::Tensor rows = tensor::full({4, 5}, std::numeric_limits<double>::infinity(), at::kFloat);
  accumulator.add(0, rows, tensor::zeros({4}, at::kBool));
  accumulator.add(0, tensor::zeros({0, 5}, at::kFloat), tensor::zeros({0}, at::kBool));
  EXPECT_EQ(accumulator.tokens(), 0);
  EXPECT_TRUE(accumulator.merge().equal(tensor::zeros({5, 5}, at::kFloat)));
}

TEST(TokenBatch, TheFirstBadTokenIsNamedByItsPlaceInTheWholeBatch) {
  const at::Tensor rows = make_rows(6000, 8, 2), keep = two_of_three(6000);
  rows.select(0, 3).fill_(std::numeric_limits<double>::infinity());  // does not count
  rows.select(0, 5000).select(0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  for (const at::Tensor& x :
       {rows, rows.to(at::kDouble), make_rows(6000, 16, 2).slice(1, 0, 16, 2).copy_(rows)}) {
    HessianAccumulator accumulator(8, 1);
    try {
      accumulator.add(0, x, keep);
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("1 of 32000"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("row 5000"), std::string::npos) << error.what();
    }
    EXPECT_EQ(accumulator.tokens(), 0);
  }
}

TEST(TokenBatch, MasksThatDoNotFitAreRefused) {
  const at::Tensor rows = make_rows(6, 4, 3).reshape({2, 3, 4});
  const at::Tensor wrong[] = {tensor::full({5}, 1, at::kBool), tensor::full({3, 2}, 1, at::kBool),
                              tensor::full({2, 3, 4}, 1, at::kBool), tensor::full({2, 3}, 1, at::kFloat)};
  HessianAccumulator accumulator(4, 1);
  for (const at::Tensor& keep : wrong) EXPECT_THROW(accumulator.add(0, rows, keep), Error);
  EXPECT_THROW(accumulator.add(0, at::Tensor()), Error);
  EXPECT_EQ(accumulator.tokens(), 0);
}

// Pieces of a chunk hold all rows that count, in order, and none lies in two chunks.
TEST(TokenBatch, PiecesEndWithTheChunks) {
  const at::Tensor rows = tensor::arange(5000, at::kFloat).reshape({5000, 1}), keep = two_of_three(5000);
  for (const bool copies : {false, true}) {
    for (const int64_t chunk : {1, 7, 600, 10000}) {
      const TokenBatch batch(rows, keep, 1);
      PieceRule rule{.chunk_rows = chunk};
      if (copies) rule.copy_as = at::kFloat;
      int64_t seen = 0, expected = 0;
      batch.for_each_piece(rule, [&](const TokenPiece& piece) {
        EXPECT_EQ(seen / chunk, (seen + piece.count - 1) / chunk);
        for (int64_t i = 0; i < piece.count; ++i, ++seen) {
          while (expected % 3 == 0) ++expected;
          const int64_t row = piece.index == nullptr ? i : piece.index[i];
          ASSERT_EQ(piece.x.select(0, row).item<float>(), static_cast<float>(expected));
          ASSERT_EQ(piece.place(i), expected);
          ++expected;
        }
      });
      EXPECT_EQ(seen, batch.tokens());
      EXPECT_EQ(seen, 3333);
    }
  }
}

}  // namespace
}  // namespace gramian
