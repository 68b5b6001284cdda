#include "runtime/generate.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "formats/tokenizer_fixture.h"
#include "support/tiny_model.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::TinyModel;

// A random model with a token for every byte.
class GenerateTest : public testing::Test {
 protected:
  GenerateTest() : tokenizer_(testing_support::load(testing_support::small_tokenizer())) {
    tiny_.config["max_position_embeddings"] = 64;
    // Bytes 128 and up are never chosen, so that text is ASCII.
    tiny_.tensors["lm_head.weight"].narrow(0, 128, 128).zero_();
    model_ = std::make_unique<ResidentModel>(tiny_.save(), OpenOptions{.dtype = "float32"},
                                             std::make_shared<ThreadPool>(1));
  }

  Generation make(const GenerateOptions& options, const std::string& prompt = "some words") {
    streamed_.clear();
    return generate(
        *model_, tokenizer_, tokenizer_.encode(prompt), options,
        [&](std::string_view part) { streamed_ += part; }, log_);
  }
  // Greedy choice from forwards over the whole row.
  std::vector<int64_t> expected(int64_t tokens, const std::string& prompt = "some words") {
    const tensor::InferenceScope inference;
    TokenRow row = tokenizer_.encode(prompt);
    const size_t begin = row.size();
    for (int64_t i = 0; i < tokens; ++i) {
      const at::Tensor states = model_->states({row});
      row.push_back(model_->logits(states.narrow(0, states.size(0) - 1, 1)).argmax().item<int64_t>());
    }
    return {row.begin() + static_cast<int64_t>(begin), row.end()};
  }

  TinyModel tiny_{{.vocab = 256}, 3};
  Tokenizer tokenizer_;
  std::unique_ptr<ResidentModel> model_;
  Log log_{LogLevel::quiet};
  std::string streamed_;
};

TEST_F(GenerateTest, GreedyIsTheBestTokenOfWholeForwards) {
  const std::vector<int64_t> ids = expected(20);
  const Generation made = make({.tokens = 20});
  EXPECT_EQ(made.ids, ids);
  EXPECT_EQ(made.text, tokenizer_.decode(ids));
  EXPECT_EQ(streamed_, made.text);
  EXPECT_EQ(made.finish, Finish::length);
  EXPECT_EQ(made.decoded, 20);
  EXPECT_GT(made.cache_bytes, 0);
}

TEST_F(GenerateTest, EndsAtATokenOrAText) {
  const std::vector<int64_t> ids = expected(20);
  const Generation by_token = make({.tokens = 20, .eos = {999, ids[7]}});
  EXPECT_EQ(by_token.finish, Finish::eos);
  const auto first = std::find(ids.begin(), ids.end(), ids[7]);
  EXPECT_EQ(by_token.ids, std::vector<int64_t>(ids.begin(), first));
  EXPECT_EQ(by_token.decoded, first - ids.begin() + 1);

  const std::string text = tokenizer_.decode(ids), stop = text.substr(5, 3);
  const Generation by_text = make({.tokens = 20, .stops = {stop, "not there"}});
  EXPECT_EQ(by_text.finish, Finish::stop);
  EXPECT_EQ(by_text.text, text.substr(0, text.find(stop)));
  EXPECT_EQ(streamed_, by_text.text);
}

TEST_F(GenerateTest, SeedsAndSettingsDecideWhatIsSampled) {
  const auto text = [&](const SamplerOptions& sampler) {
    return make({.tokens = 30, .sampler = sampler}).text;
  };
  const SamplerOptions one{.temperature = 1.0, .seed = 1};
  EXPECT_EQ(text(one), text(one));
  EXPECT_NE(text(one), text({.temperature = 1.0, .seed = 2}));
  EXPECT_NE(text(one), text({.temperature = 2.0, .seed = 1}));
  EXPECT_NE(text(one), text({.temperature = 1.0, .top_k = 2, .seed = 1}));
  EXPECT_NE(text(one), text({.temperature = 1.0, .top_p = 0.3, .seed = 1}));
  EXPECT_EQ(text({.temperature = 1.0, .top_k = 1, .seed = 1}), text({}));
  EXPECT_NE(text({.repetition_penalty = 5}), text({}));
}

TEST_F(GenerateTest, PromptAndAnswerFitTheContext) {
  const auto refused = [&](const GenerateOptions& options, const std::string& prompt,
                           const std::string& says) {
    const Error error = error_of([&] { make(options, prompt); });
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  };
  const std::string sixty(60, 'x');
  EXPECT_EQ(make({}, sixty).decoded, 4);  // up to max_position_embeddings of 64
  EXPECT_EQ(make({.tokens = 4}, sixty).decoded, 4);
  refused({.tokens = 5}, sixty, "-n 4 or less");
  refused({}, std::string(64, 'x'), "shorter prompt");
  EXPECT_EQ(make({.tokens = 20, .context = 13}).decoded, 3);  // ten tokens of the prompt
  refused({.tokens = 1, .context = 10}, "some words", "--ctx is 10; raise --ctx");
  refused({.context = 65}, "some words", "--ctx 64 or less");
  refused({}, "", "no token");
}

TEST_F(GenerateTest, TheCacheIsBoundedByTheContext) {
  // Two layers, keys and values of two heads of eight, f32: 256 bytes a token.
  EXPECT_EQ(make({.tokens = 2}).cache_bytes, 12 * 256);
  EXPECT_EQ(make({.tokens = 50, .context = 13}).cache_bytes, 13 * 256);
}

TEST_F(GenerateTest, IdsOutsideTheVocabularyAreNamed) {
  const Error error =
      error_of([&] { generate(*model_, tokenizer_, {3, 256}, {}, [](std::string_view) {}, log_); });
  EXPECT_NE(std::string(error.what()).find("token id 256, position 1"), std::string::npos) << error.what();
}

TEST_F(GenerateTest, ATokenWithoutTextIsSaid) {
  // A vocabulary that ends before the model's, as padded ones do.
  testing_support::Json file = testing_support::small_tokenizer();
  auto& vocabulary = file["model"]["vocab"];
  const int64_t chosen = expected(1)[0];
  for (auto it = vocabulary.begin(); it != vocabulary.end(); ++it) {
    if (it.value() == chosen) it.value() = 300;
  }
  const Tokenizer other = testing_support::load(file);
  const Generation made =
      generate(*model_, other, tokenizer_.encode("some words"), {.tokens = 1}, [](std::string_view) {}, log_);
  EXPECT_EQ(made.ids, std::vector<int64_t>{chosen});
  EXPECT_EQ(made.text, "");
  ASSERT_EQ(log_.warnings().size(), 1u);
}

TEST_F(GenerateTest, NanIsRefused) {
  tiny_.tensors["model.norm.weight"].fill_(NAN);
  model_ = std::make_unique<ResidentModel>(tiny_.save(), OpenOptions{.dtype = "float32"},
                                           std::make_shared<ThreadPool>(1));
  const Error error = error_of([&] { make({}); });
  EXPECT_EQ(error.kind(), ErrorKind::numerical);
  EXPECT_NE(std::string(error.what()).find("NaN"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace gramian
