// Hashed n-grams against their formula, token by token; packs of rows and rows that grow.
#include "models/blocks/ngram_embedding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/files.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::TinyModel;

constexpr int64_t kHidden = 6, kCount = 2, kWidth = kHidden * kCount, kOrder = 3, kHeads = 4, kDim = 8,
                  kKernel = 2, kEos = 2;

class NgramEmbeddingTest : public testing::Test {
 protected:
  NgramEmbeddingTest() {
    spec_ = {.streams = {.kind = StreamSpec::Kind::gated,
                         .hidden = kHidden,
                         .count = kCount,
                         .norm = {.kind = NormKind::rms_offset}},
             .order = kOrder,
             .heads_per_order = 2,
             .dim = kDim,
             .kernel = kKernel,
             .shards = 3,
             .eos = kEos};
    tiny_.tensors.clear();
    put("key_proj.weight", {kWidth, kDim}, 1);
    put("value_proj.weight", {kHidden, kDim}, 2);
    put("norm_key.weight", {kWidth}, 3);
    put("norm_query.weight", {kWidth}, 4);
    put("norm_conv.weight", {kWidth}, 5);
    put("conv1d.weight", {kWidth, 1, kKernel}, 6);
    // 7 + 11 + 13 + 5 rows in shards of different sizes.
    const at::Tensor all = random_normal({40, kDim / kHeads}, 7);
    const std::vector<int64_t> sizes{10, 1, 29};
    for (int64_t s = 0, begin = 0; s < 3; begin += sizes[static_cast<size_t>(s++)]) {
      tiny_.tensors[str("m.ple_embedding.ngram_embedding.shard_", s, ".weight")] =
          all.narrow(0, begin, sizes[static_cast<size_t>(s)]).clone();
    }
    table_ = all;
    integers("layer_multipliers", multipliers_);
    integers("ngram_heads_offsets", offsets_);
    integers("ngram_heads_vocab_sizes", sizes_);
    // Two rows, with an eos inside of each.
    ids_ = {5, 9, 2, 7, 7, 31, 4, 5, 2, 2, 8, 8, 8, 1};
    streams_ = random_normal({14, kWidth}, 8);
  }
  void put(const std::string& name, const std::vector<int64_t>& shape, uint32_t seed) {
    tiny_.tensors["m." + name] = random_normal(shape, seed).mul(0.5);
  }
  void integers(const std::string& name, const std::vector<int64_t>& values) {
    tiny_.tensors["m.ple_embedding." + name] = ids(values).clone();
  }
  static at::Tensor ids(const std::vector<int64_t>& values) {
    return tensor::wrap(values.data(), {static_cast<int64_t>(values.size())}, at::kLong, nullptr);
  }
  at::Tensor stored(const std::string& name) const { return tiny_.tensors.at("m." + name).to(at::kDouble); }
  NgramEmbedding block() {
    return {Weights(std::make_shared<const Checkpoint>(tiny_.save()), at::kFloat, {}), "m.", spec_};
  }
  at::Tensor output(const std::vector<int64_t>& lengths) {
    BatchContext context = make_batch_context(lengths, {});
    context.ids = ids(ids_);
    return block().added(streams_, context, {});
  }

  // The word `back` tokens before position i of a row.
  static int64_t word(const std::vector<int64_t>& row, int64_t i, int64_t back) {
    for (int64_t j = i - 1; j >= i - back; --j) {
      if (j < 0 || row[static_cast<size_t>(j)] == kEos) return kEos;
    }
    return row[static_cast<size_t>(i - back)];
  }
  at::Tensor found(const std::vector<int64_t>& row, int64_t i) const {
    std::vector<at::Tensor> parts;
    for (int64_t h = 0; h < kHeads; ++h) {
      int64_t mixed = 0;
      for (int64_t s = 0; s < 2 + h / 2; ++s) mixed ^= word(row, i, s) * multipliers_[static_cast<size_t>(s)];
      const auto head = static_cast<size_t>(h);
      parts.push_back(table_[mixed % sizes_[head] + offsets_[head]]);
    }
    return tensor::cat(parts, 0).to(at::kDouble);
  }
  at::Tensor naive(int64_t begin, int64_t length) const {
    const std::vector<int64_t> row(ids_.begin() + begin, ids_.begin() + begin + length);
    const auto normed = [&](const at::Tensor& x, const std::string& name) {  // [count, hidden]
      return x.div(x.square().mean(-1, true).add(1e-6).sqrt())
          .mul(stored(name + ".weight").view({kCount, kHidden}).add(1));
    };
    const auto sigmoid = [](const at::Tensor& x) { return x.neg().exp().add(1).reciprocal(); };
    std::vector<at::Tensor> values, inputs, out;
    for (int64_t i = 0; i < length; ++i) {
      const at::Tensor e = found(row, i);
      const at::Tensor key = normed(stored("key_proj.weight").mv(e).view({kCount, kHidden}), "norm_key");
      const at::Tensor query =
          normed(streams_[begin + i].to(at::kDouble).view({kCount, kHidden}), "norm_query");
      const at::Tensor product = key.mul(query).sum(-1, true).div(std::sqrt(double{kHidden}));
      const at::Tensor gate = product.abs().clamp_min(1e-6).sqrt().mul(product.sign());
      values.push_back(sigmoid(gate).mul(stored("value_proj.weight").mv(e)));
      inputs.push_back(normed(values.back(), "norm_conv").view({kWidth}));
    }
    for (int64_t i = 0; i < length; ++i) {
      at::Tensor sum = tensor::zeros({kWidth}, at::kDouble);
      for (int64_t j = 0; j < kKernel; ++j) {
        const int64_t at = i - (kKernel - 1 - j) * kOrder;
        if (at >= 0)
          sum = sum.add(
              stored("conv1d.weight").select(2, j).view({kWidth}).mul(inputs[static_cast<size_t>(at)]));
      }
      out.push_back(values[static_cast<size_t>(i)].view({kWidth}).add(sum.mul(sigmoid(sum))).unsqueeze(0));
    }
    return tensor::cat(out, 0);
  }

  NgramSpec spec_;
  TinyModel tiny_;
  at::Tensor table_, streams_;
  std::vector<int64_t> ids_;
  const std::vector<int64_t> multipliers_{6700417, 1000003, 998244353}, offsets_{0, 7, 18, 31},
      sizes_{7, 11, 13, 5};
};

TEST_F(NgramEmbeddingTest, EqualsTheFormulaInEveryRowOfAPack) {
  const at::Tensor same = output({7, 7});
  EXPECT_LT(max_difference(same.narrow(0, 0, 7), naive(0, 7)), 1e-5);
  EXPECT_LT(max_difference(same.narrow(0, 7, 7), naive(7, 7)), 1e-5);
  const at::Tensor other = output({1, 9, 4});
  EXPECT_LT(max_difference(other.narrow(0, 0, 1), naive(0, 1)), 1e-5);
  EXPECT_LT(max_difference(other.narrow(0, 1, 9), naive(1, 9)), 1e-5);
  EXPECT_LT(max_difference(other.narrow(0, 10, 4), naive(10, 4)), 1e-5);
}

TEST_F(NgramEmbeddingTest, RowsThatGrow) {
  const at::Tensor whole = output({14});
  const NgramEmbedding embedding = block();
  NgramState state;
  for (int64_t begin = 0, count = 1; begin < 14; begin += count, count = begin == 1 ? 5 : 1) {
    BatchContext context = make_continuation({.begin = begin, .length = count, .whole = 14}, {});
    context.ids = ids(ids_).narrow(0, begin, count);
    const at::Tensor part = embedding.added(streams_.narrow(0, begin, count), context, {&state});
    EXPECT_LT(max_difference(part, whole.narrow(0, begin, count)), 1e-6) << begin;
  }
  EXPECT_EQ(state.bytes(), 2 * 8 + 3 * kWidth * 4);
}

TEST_F(NgramEmbeddingTest, RowsOutsideTheTableAreRefused) {
  for (const auto& [offset, size] : {std::pair<int64_t, int64_t>{36, 5}, {-1, 5}, {31, 0}}) {
    integers("ngram_heads_offsets", {0, 7, 18, offset});
    integers("ngram_heads_vocab_sizes", {7, 11, 13, size});
    EXPECT_EQ(error_of([&] { block(); }).kind(), ErrorKind::corrupt_data) << offset;
  }
}

}  // namespace
}  // namespace gramian
