#include "pipeline/importance.h"

#include <gtest/gtest.h>

#include "pipeline/calibrator.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::random_rows;
using testing_support::TinyModel;

class ImportanceTest : public testing::Test {
 protected:
  // The rows as a file of one length.
  std::filesystem::path write_rows(const std::vector<TokenRow>& rows) {
    at::Tensor ids =
        tensor::zeros({static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size())}, at::kLong);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t t = 0; t < rows[r].size(); ++t)
        ids[static_cast<int64_t>(r)][static_cast<int64_t>(t)] = rows[r][t];
    }
    const std::filesystem::path path = scratch.path() / "rows.safetensors";
    save_safetensors(path, {{"input_ids", ids}});
    return path;
  }

  TinyModel tiny;
  testing_support::TemporaryFolder scratch;
  ThreadPool pool{2};
  Log log{LogLevel::quiet};
};

// n/2 of the Hessian's diagonal, for every module of a pass over the original model.
TEST_F(ImportanceTest, SumsAreTheDiagonalsOfTheHessians) {
  const std::vector<TokenRow> rows = random_rows({7, 7, 7, 7, 7}, 50);
  tiny.save();
  const std::filesystem::path calibration = write_rows(rows);
  for (const int lanes : {1, 2}) {
    const MeasuredImportance measured = measure_importance({.source = tiny.folder.path(),
                                                            .calibration = calibration,
                                                            .rows = {.samples_default = 0},
                                                            .batch = 2,
                                                            .lanes = lanes,
                                                            .dtype = "float32"},
                                                           pool, log);
    EXPECT_EQ(measured.tokens, 35);
    EXPECT_EQ(measured.rows, 5);
    EXPECT_EQ(measured.matrix.chunks, 5u);
    EXPECT_EQ(measured.matrix.chunk_size, 7u);
    EXPECT_TRUE(measured.without_data.empty());
    EXPECT_EQ(measured.matrix.weights.size(), 14u);
    EXPECT_FALSE(measured.matrix.weights.contains("output.weight"));

    const Model model(std::make_shared<const Checkpoint>(tiny.folder.path()), {});
    Calibrator calibrator(model, rows, {.batch = 2, .sequential = Sequential::none});
    const std::map<std::string, std::string> names = {
        {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"}, {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"}, {"mlp.gate_proj", "ffn_gate"},  {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"}};
    size_t compared = 0;
    for (int64_t i = 0; i < model.spec().layers(); ++i) {
      const auto layer = model.load_layer(i);
      calibrator.run_layer(i, *layer, [&](const PauseStatistics& statistics) {
        EXPECT_FALSE(statistics.squares.defined());
        const at::Tensor expected = statistics.hessian.diagonal().mul(35.0 / 2);
        for (const Linear* module : statistics.modules) {
          const std::string own = module->name.substr(model.layer_prefix(i).size());
          const ImportanceSums& sums =
              measured.matrix.weights.at(str("blk.", i, ".", names.at(own), ".weight"));
          EXPECT_EQ(sums.counts, (std::vector<float>{35}));
          ASSERT_EQ(sums.in_features(), expected.numel());
          for (int64_t j = 0; j < expected.numel(); ++j) {
            const float value = expected[j].item<float>();
            EXPECT_NEAR(sums.sums[static_cast<size_t>(j)], value, 1e-5f * value)
                << module->name << " column " << j;
          }
          ++compared;
        }
      });
    }
    EXPECT_EQ(compared, measured.matrix.weights.size());
  }
}

TEST_F(ImportanceTest, ForeignIdsAreRefusedBeforeTheWork) {
  tiny.save();
  const std::filesystem::path calibration = write_rows({{1, 2, 50}});
  const Error error = testing_support::error_of([&] {
    (void)measure_importance(
        {.source = tiny.folder.path(), .calibration = calibration, .rows = {.samples_default = 0}}, pool,
        log);
  });
  EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace gramian
