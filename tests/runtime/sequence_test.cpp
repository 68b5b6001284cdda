// A growing row against forwards over the whole row.
#include "runtime/sequence.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "support/tiny_model.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::max_difference;
using testing_support::random_rows;
using testing_support::TinyModel;
using Json = nlohmann::ordered_json;

constexpr int64_t kLength = 40;
const auto kPool = std::make_shared<ThreadPool>(1);

// Appends `first` tokens, then one at a time, `chunk` per forward; each time the state must be that of a forward over the
// whole row so far.
void expect_whole_rows(TinyModel& tiny, int64_t first, int64_t chunk) {
  const tensor::InferenceScope inference;
  ResidentModel model(tiny.save(), {.dtype = "float32"}, kPool);
  const TokenRow row = random_rows({kLength}, 50)[0];
  Sequence sequence(model, {.tokens_max = kLength, .chunk = chunk});
  for (int64_t at = 0; at < kLength;) {
    const int64_t count = at == 0 ? first : 1;
    const at::Tensor found =
        sequence.append(std::span(row).subspan(static_cast<size_t>(at), static_cast<size_t>(count)));
    at += count;
    ASSERT_EQ(found.sizes(), at::IntArrayRef({1, 32}));
    const at::Tensor whole = model.states({TokenRow(row.begin(), row.begin() + at)});
    EXPECT_LT(max_difference(found[0], whole[at - 1]), 1e-4) << at << " tokens";
  }
  EXPECT_EQ(sequence.ids(), row);
}

const std::vector<std::pair<std::string, Json>> kRopes{
    {"default", {{"rope_type", "default"}}},
    {"linear", {{"rope_type", "linear"}, {"factor", 3.0}}},
    {"dynamic", {{"rope_type", "dynamic"}, {"factor", 2.0}}},
    {"llama3",
     {{"rope_type", "llama3"},
      {"factor", 8.0},
      {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0},
      {"original_max_position_embeddings", 16}}},
    {"yarn", {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}}},
    {"longrope",
     {{"rope_type", "longrope"},
      {"factor", 4.0},
      {"original_max_position_embeddings", 16},
      {"short_factor", {1.0, 1.1, 1.2, 1.3}},
      {"long_factor", {2.0, 3.0, 4.0, 5.0}}}}};

TEST(SequenceTest, EveryRotaryKindGivesTheStatesOfWholeRows) {
  for (const auto& [name, rope] : kRopes) {
    SCOPED_TRACE(name);
    TinyModel tiny;
    tiny.config["max_position_embeddings"] = 20;  // dynamic frequencies change beyond it
    tiny.config["rope_parameters"] = rope;
    expect_whole_rows(tiny, 5, 512);   // longrope's frequencies change between two tokens
    expect_whole_rows(tiny, 30, 512);  // behind where they change
    expect_whole_rows(tiny, 30, 7);
  }
}

TEST(SequenceTest, WindowsGiveTheStatesOfWholeRows) {
  for (const int64_t window : {1, 4, 19, 100}) {
    SCOPED_TRACE(window);
    TinyModel tiny({.layers = 3});
    tiny.config["model_type"] = "qwen2";
    tiny.config["use_sliding_window"] = true;
    tiny.config["sliding_window"] = window;
    tiny.config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
    for (int i = 0; i < 3; ++i) {
      for (const auto& [name, size] : {std::pair{"q", 32}, std::pair{"k", 16}, std::pair{"v", 16}}) {
        tiny.tensors[str("model.layers.", i, ".self_attn.", name, "_proj.bias")] =
            testing_support::random_normal({size}, static_cast<uint32_t>(90 + i));
      }
    }
    expect_whole_rows(tiny, 1, 512);
    expect_whole_rows(tiny, 25, 6);
  }
}

TEST(SequenceTest, TheCacheIsBoundedByTheRow) {
  TinyModel tiny;
  ResidentModel model(tiny.save(), {.dtype = "float32"}, kPool);
  const TokenRow row = random_rows({30}, 50)[0];
  Sequence sequence(model, {.tokens_max = 32});
  EXPECT_EQ(sequence.cache_bytes(), 0);
  sequence.append(row);
  sequence.append(std::span(row).first(1));
  // Two layers, keys and values of two heads of eight, f32.
  EXPECT_EQ(sequence.cache_bytes(), 2 * 2 * 32 * 16 * 4);
  EXPECT_THROW(sequence.append(std::span(row).first(2)), Error);
}

// Keys and values in half the memory; what is lost is their rounding, and single tokens and parts of a prompt read the same cache.
TEST(SequenceTest, KeysAndValuesMayBeKeptInAnotherType) {
  const tensor::InferenceScope inference;
  TinyModel tiny;
  ResidentModel model(tiny.save(), {.dtype = "float32"}, kPool);
  const TokenRow row = random_rows({32}, 50)[0];
  const auto last_state = [&](std::optional<at::ScalarType> kv_cache, size_t first) {
    Sequence sequence(model, {.tokens_max = 32, .kv_cache = kv_cache});
    sequence.append(std::span(row).first(first));
    for (size_t i = first; i + 1 < row.size(); ++i) sequence.append(std::span(row).subspan(i, 1));
    const at::Tensor state = sequence.append(std::span(row).last(1)).clone();
    EXPECT_EQ(sequence.cache_bytes(), 2 * 2 * 32 * 16 * (kv_cache ? 2 : 4));
    return state;
  };
  const at::Tensor exact = last_state(std::nullopt, 20);
  for (const auto& [type, most] : {std::pair{at::kHalf, 2e-3}, std::pair{at::kBFloat16, 1.6e-2}}) {
    const at::Tensor kept = last_state(type, 20);
    const double change = max_difference(kept, exact);
    EXPECT_GT(change, 0);
    EXPECT_LT(change, most * exact.abs().max().item<double>());
    EXPECT_LT(max_difference(last_state(type, 3), kept), most * exact.abs().max().item<double>());
  }
}

TEST(SequenceTest, RefusesIdsOutsideTheVocabulary) {
  TinyModel tiny;
  ResidentModel model(tiny.save(), {.dtype = "float32"}, kPool);
  Sequence sequence(model, {.tokens_max = 8});
  const TokenRow row{3, 50};
  EXPECT_THROW(sequence.append(row), Error);
}

}  // namespace
}  // namespace gramian
