#include "pipeline/rotate.h"

#include <map>

#include "base/error.h"
#include "base/format.h"
#include "models/rotations.h"
#include "pipeline/output_folder.h"
#include "pipeline/rewriting.h"
#include "pipeline/source_scan.h"
#include "tensor/ops.h"
#include "tensor/rotation.h"

namespace gramian {
namespace {

using tensor::Rotation;

class Turning {
 public:
  Turning(const Model& model, Rewriting& rewriting, uint64_t seed)
      : model_(model), rewriting_(rewriting), seed_(seed) {}

  void residual(Rotated& result) {
    const auto stream = std::make_shared<const Rotation>(model_.spec().hidden, seed_);
    const auto turn = [stream](const at::Tensor& rows) { return stream->columns(rows); };
    const auto turn_rows = [stream](const at::Tensor& whole) { return stream->rows(whole); };
    const std::string embedding = model_.prefix() + "embed_tokens.weight";
    for (int64_t i = 0; i < model_.spec().layers(); ++i) {
      const std::string prefix = model_.layer_prefix(i);
      const ResidualPorts ports = residual_ports(model_.spec(), i);
      for (const ChannelFold& norm : ports.norms) {
        const at::Tensor gain = take_gain(prefix + norm.giver);
        for (const std::string& reader : norm.readers) read(prefix + reader + ".weight", gain, turn);
        result.readers += static_cast<int64_t>(norm.readers.size());
      }
      for (const std::string& writer : ports.writers) {
        rows(prefix + writer, turn_rows);
        ++result.readers;
      }
    }
    const std::string head = model_.head().name + ".weight";
    if (model_.tied()) {
      rewriting_.add(head, embedding);
      rewriting_.config()["tie_word_embeddings"] = false;
      result.head_bytes = model_.checkpoint().tensor(embedding).bytes.size();
    }
    read(head, take_gain(model_.prefix() + "norm"), turn);
    rewriting_.columns(embedding, turn);
  }

  void heads(int64_t layer, const ChannelFold& fold) {
    const int64_t d = fold.head;
    // Every layer its own; the stream's is none of theirs.
    const auto turn = std::make_shared<const Rotation>(d, seed_ + 1 + static_cast<uint64_t>(layer));
    const std::string prefix = model_.layer_prefix(layer);
    rows(prefix + fold.giver,
         [turn, d, first = fold.first_row, count = fold.channels](const at::Tensor& whole) {
           at::Tensor result = whole.clone();
           for (int64_t row = first; row < first + count; row += d)
             result.slice(0, row, row + d).copy_(turn->rows(whole.slice(0, row, row + d)));
           return result;
         });
    for (const std::string& reader : fold.readers) {
      rewriting_.columns(prefix + reader + ".weight", [turn, d](const at::Tensor& some) {
        return turn->columns(some.reshape({some.size(0), -1, d})).view(some.sizes());
      });
    }
  }

 private:
  // Makes the norm's weight 1 and returns what it was, f64.
  at::Tensor take_gain(const std::string& norm) {
    const double offset = model_.spec().norms.spec.kind == NormKind::rms_offset ? 1 : 0;
    const at::Tensor stored = model_.checkpoint().tensor(norm + ".weight").to_tensor();
    rewriting_.replace(norm + ".weight", tensor::full({stored.size(0)}, 1 - offset, stored.scalar_type()));
    return stored.to(at::kDouble).add(offset);
  }

  void read(const std::string& weight, const at::Tensor& gain, const Rewriting::Step& turn) {
    rewriting_.columns(weight, [gain](const at::Tensor& some) { return some.mul(gain); });
    rewriting_.columns(weight, turn);
  }

  // Of a linear layer and its bias.
  void rows(const std::string& module, const Rewriting::Step& step) {
    rewriting_.rows(module + ".weight", step);
    if (model_.checkpoint().contains(module + ".bias")) rewriting_.rows(module + ".bias", step);
  }

  const Model& model_;
  Rewriting& rewriting_;
  uint64_t seed_;
};

}  // namespace

Rotated rotate(const RotateJob& job, ThreadPool& pool, Log& log) {
  const tensor::InferenceScope inference;
  refuse_replacing(job.output, {job.source});
  const auto model = open_for_rewriting(job.source, job.output, job.force, at::kFloat);
  model->survey();
  Rewriting rewriting(model->checkpoint(), "store the model in bf16 or f32 first");
  Turning turning(*model, rewriting, job.seed);
  Rotated result;
  if (job.heads) {
    for (int64_t i = 0; i < model->spec().layers(); ++i) {
      const LayerFolds turns = head_turns(model->spec(), i);
      for (const std::string& line : turns.left_alone)
        result.left_alone.push_back(model->layer_prefix(i) + line);
      for (const ChannelFold& fold : turns.folds) turning.heads(i, fold);
      result.heads += static_cast<int64_t>(turns.folds.size());
    }
  }
  if (job.residual) {
    const std::string why = residual_obstacle(*model);
    if (!why.empty())
      throw Error(ErrorKind::unsupported, job.source.string(),
                  "the residual stream of this model cannot be turned: " + why,
                  result.heads > 0 ? "pass --only heads" : "quantize it as it is");
    turning.residual(result);
  }
  if (result.heads == 0 && !job.residual)
    throw Error(ErrorKind::unsupported, job.source.string(),
                "has no heads that can be turned:" + below(result.left_alone), "\nquantize it as it is");
  scan_source(model->checkpoint(), {}, pool, log);
  result.bytes = rewriting.write(job.output, job.force);
  return result;
}

}  // namespace gramian
