// Every folder with config.json and golden.safetensors: logits, final norm, and per layer the hidden state, the mixer's and
// the MLP's output, against a reference forward in float32. Tolerances come from the index.json above the folder.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "formats/checkpoint.h"
#include "models/model.h"
#include "runtime/sequence.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

struct Tolerance {
  double logits_max_abs = 0;
  double hidden_rel = 0;
};

// index.json of the nearest folder above that lists `folder`.
Tolerance tolerance_of(const fs::path& folder) {
  const fs::path index = folder.parent_path() / "index.json";
  const auto json = parse_json(read_text(index), index.string());
  const auto& entry = json.at(folder.filename().string());
  return {entry.at("tol_logits_max_abs").get<double>(), entry.at("tol_hidden_rel").get<double>()};
}

void expect_close(const std::string& what, const at::Tensor& found, const at::Tensor& expected,
                  double bound) {
  const at::Tensor flat = expected.reshape({-1, expected.size(-1)});
  ASSERT_EQ(found.sizes(), flat.sizes()) << what;
  const double worst = found.to(at::kFloat).sub(flat).abs().max().item<double>();
  EXPECT_LE(worst, bound) << what;
}

// Whether positions turn as they do in a row of `whole` tokens (dynamic and longrope differ).
bool turns_alike(const DecoderSpec& spec, int64_t length, int64_t whole) {
  return std::all_of(spec.ropes.begin(), spec.ropes.end(), [&](const RopeSpec& rope) {
    return rope_frequencies(rope, length) == rope_frequencies(rope, whole);
  });
}

// Rows that grow, a few tokens at a time and then one by one, give the logits of the reference's forward over whole rows.
void check_sequences(const fs::path& folder, const std::vector<TokenRow>& rows, const at::Tensor& logits,
                     double bound) {
  ResidentModel model(folder, {.dtype = "float32"}, std::make_shared<ThreadPool>(1));
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto length = static_cast<int64_t>(rows[r].size());
    Sequence sequence(model, {.tokens_max = length, .chunk = 3});
    for (int64_t at = 0; at < length;) {
      const int64_t count = at == 0 ? std::min<int64_t>(7, length) : 1;
      const at::Tensor state =
          sequence.append(std::span(rows[r]).subspan(static_cast<size_t>(at), static_cast<size_t>(count)));
      at += count;
      // The reference knows the whole row only.
      if (!turns_alike(model.model().spec(), at, length)) continue;
      const at::Tensor expected = logits[static_cast<int64_t>(r)].narrow(0, at - 1, 1);
      expect_close(str("logits of a growing row, position ", at - 1), model.logits(state), expected, bound);
    }
  }
}

// A row over several chunks of the delta rule: its chunked form over the whole row against the recurrent one, token by token.
void check_long_row(const fs::path& folder, double bound) {
  constexpr int64_t kLength = 210;
  ResidentModel model(folder, {.dtype = "float32"}, std::make_shared<ThreadPool>(1));
  if (model.model().spec().recurrent.empty()) return;
  std::mt19937 random(7);
  TokenRow row;
  for (int64_t i = 0; i < kLength; ++i)
    row.push_back(static_cast<int64_t>(random() % static_cast<uint32_t>(model.model().spec().vocab)));
  const at::Tensor whole = model.logits(model.states({row}));
  Sequence sequence(model, {.tokens_max = kLength});
  for (int64_t i = 0; i < kLength; ++i) {
    const at::Tensor found = model.logits(sequence.append(std::span(row).subspan(static_cast<size_t>(i), 1)));
    if (i % 16 == 15 || i + 1 == kLength)
      expect_close(str("logits of a long row, position ", i), found, whole.narrow(0, i, 1), bound);
  }
}

void check_folder(const fs::path& folder) {
  const Tolerance tolerance = tolerance_of(folder);
  auto checkpoint = std::make_shared<const Checkpoint>(folder);
  try {
    find_family({checkpoint->config(), "config.json"});
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::unsupported)
      GTEST_SKIP() << folder.filename().string() << ": " << error.what();
    throw;
  }
  const tensor::InferenceScope inference;
  const Model model(checkpoint, {.dtype = at::kFloat, .treat_as_tied = false, .quantized = {}});
  const SafetensorsFile golden(folder / "golden.safetensors");
  const at::Tensor ids = golden.load("input_ids");
  const auto hidden_bound = [&](const at::Tensor& expected) {
    return tolerance.hidden_rel * expected.abs().max().item<double>();
  };
  const auto compare = [&](const std::string& name, const at::Tensor& found) {
    if (golden.contains(name)) expect_close(name, found, golden.load(name), hidden_bound(golden.load(name)));
  };

  std::vector<TokenRow> rows;
  for (int64_t r = 0; r < ids.size(0); ++r) {
    const at::Tensor row = ids[r].contiguous();
    rows.emplace_back(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel());
  }
  BatchContext context = model.context(rows);
  at::Tensor hidden = model.embed(model.pack_rows(rows));
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    // Streams end to end; behind them may stand what else goes to the next layer.
    const std::string name = str("hidden.", i);
    if (golden.contains(name)) {
      const at::Tensor expected = golden.load(name).reshape({ids.numel(), -1});
      expect_close(name, hidden.narrow(1, 0, expected.size(1)), expected, hidden_bound(expected));
    }
    context.tap = [&](std::string_view part, const at::Tensor& value) { compare(str(part, ".", i), value); };
    const auto layer = model.load_layer(i);
    hidden = run(layer->forward(hidden, context));
  }
  const at::Tensor normed = model.final_norm(hidden);
  compare("final_norm", normed);
  expect_close("logits", model.logits(normed), golden.load("logits"), tolerance.logits_max_abs);
  check_sequences(folder, rows, golden.load("logits"), tolerance.logits_max_abs);
  check_long_row(folder, tolerance.logits_max_abs);
}

}  // namespace
}  // namespace gramian

int main(int argc, char** argv) {
  using namespace gramian;
  return golden::run(argc, argv, "arch", [](const fs::path& root) {
    for (const fs::path& folder : golden::folders_with(root, "golden.safetensors")) {
      golden::add("arch", folder.filename().string(), [folder] { check_folder(folder); });
    }
  });
}
