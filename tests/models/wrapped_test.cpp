// A text part in a multimodal file: the same logits as the plain model, under the file's own names; and what a file stores
// beside the decoder's layers.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::forward;
using testing_support::random_normal;
using testing_support::random_rows;
using testing_support::TinyModel;

// "model.x" becomes `prefix` + "x", the head `head`; the settings move into text_config.
void wrap(TinyModel& tiny, const std::string& prefix, const std::string& head) {
  std::map<std::string, at::Tensor> renamed;
  for (const auto& [name, tensor] : tiny.tensors)
    renamed[name == "lm_head.weight" ? head : prefix + name.substr(6)] = tensor;
  renamed["model.visual.patch_embed.proj.weight"] = random_normal({4, 3, 2, 2, 2}, 8);
  renamed["mtp.layers.0.self_attn.q_proj.weight"] = random_normal({32, 32}, 9);
  tiny.tensors = std::move(renamed);
  tiny.config = {{"model_type", "some_vision_language_model"},
                 {"architectures", {"SomeForConditionalGeneration"}},
                 {"text_config", tiny.config},
                 {"vision_config", {{"hidden_size", 4}}}};
}

TEST(Wrapped, TheSameLogitsUnderTheFilesOwnNames) {
  const auto rows = random_rows({9, 4}, 50);
  TinyModel plain;
  const Model plain_model = plain.open();
  const at::Tensor expected = plain_model.logits(forward(plain_model, rows));
  EXPECT_EQ(plain_model.prefix(), "model.");
  const std::vector<std::pair<std::string, std::string>> layouts{
      {"model.language_model.", "lm_head.weight"},
      {"language_model.model.", "language_model.lm_head.weight"},
      {"language_model.model.", "lm_head.weight"},
      {"model.", "lm_head.weight"}};
  for (const auto& [prefix, head] : layouts) {
    TinyModel tiny;
    wrap(tiny, prefix, head);
    const Model model = tiny.open();
    EXPECT_EQ(model.family().model_type, "llama");
    EXPECT_EQ(model.prefix(), prefix);
    EXPECT_TRUE(model.logits(forward(model, rows)).equal(expected)) << prefix << ", " << head;
    EXPECT_EQ(model.survey()[1][0].name, prefix + "layers.1.self_attn.q_proj");
    EXPECT_EQ(model.surplus_layers(), 0);
    EXPECT_FALSE(model.tied_on_request());
  }
}

TEST(Wrapped, AHeadMayBeTiedHereToo) {
  TinyModel tiny;
  wrap(tiny, "model.language_model.", "lm_head.weight");
  tiny.tensors.erase("lm_head.weight");
  EXPECT_EQ(error_of([&] { tiny.open(); }).kind(), ErrorKind::corrupt_data);
  EXPECT_TRUE(tiny.open({.treat_as_tied = true}).tied_on_request());
  tiny.config["tie_word_embeddings"] = true;
  const Model model = tiny.open();
  EXPECT_FALSE(model.tied_on_request());
  const at::Tensor states = random_normal({3, 32}, 4);
  const at::Tensor embedding = tiny.tensors.at("model.language_model.embed_tokens.weight");
  EXPECT_LT(testing_support::max_difference(model.logits(states), states.matmul(embedding.t())), 1e-5);
}

TEST(SurplusLayers, AreThoseThatNothingDeclares) {
  TinyModel tiny({.layers = 4});
  tiny.config["num_hidden_layers"] = 2;
  // Names that only look like layers.
  tiny.tensors["model.layers.99999999999999999999.weight"] = random_normal({2}, 1);
  tiny.tensors["model.layers.7"] = random_normal({2}, 1);
  tiny.tensors["model.layers.-7.weight"] = random_normal({2}, 1);
  tiny.tensors["model.layers.x.weight"] = random_normal({2}, 1);
  EXPECT_EQ(tiny.open().surplus_layers(), 2);
  tiny.config["num_nextn_predict_layers"] = 1;
  const Model model = tiny.open();
  EXPECT_EQ(model.spec().mtp_layers, 1);
  EXPECT_EQ(model.surplus_layers(), 1);
  EXPECT_EQ(model.survey().size(), 2u);
  tiny.config["num_nextn_predict_layers"] = 2;
  EXPECT_EQ(tiny.open().surplus_layers(), 0);
  tiny.config["num_nextn_predict_layers"] = -1;
  EXPECT_EQ(error_of([&] { tiny.open(); }).kind(), ErrorKind::corrupt_data);
}

}  // namespace
}  // namespace gramian
