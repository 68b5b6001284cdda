#include "models/model.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "tensor/few_rows.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

ConfigReader config_of(const Checkpoint& checkpoint) {
  return {checkpoint.config(), (checkpoint.folder() / "config.json").string()};
}

// The names of a plain file; of a text part in a multimodal one, today and before transformers 4.52. A file without any
// is told what the plain one holds.
std::string find_prefix(const Checkpoint& checkpoint) {
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model."}) {
    if (checkpoint.contains(str(prefix, "embed_tokens.weight"))) return prefix;
  }
  return "model.";
}

std::string find_head(const Checkpoint& checkpoint) {
  const std::string older = "language_model.lm_head.weight";
  return checkpoint.contains(older) ? older : "lm_head.weight";
}

// Hard case 1: a head that is neither stored nor declared tied is refused, never invented. One that is stored
// counts, also where config.json says tied: transformers does not tie a head that differs from the embedding.
bool head_is_embedding(const Checkpoint& checkpoint, const std::string& head, const DecoderSpec& spec,
                       const ModelOptions& options) {
  if (checkpoint.contains(head)) return false;
  if (spec.tied || options.treat_as_tied) return true;
  const Error missing(
      ErrorKind::corrupt_data, checkpoint.folder().string(),
      str("tensor '", head, "' is in no file and config.json does not say tie_word_embeddings"),
      "fetch the missing shard, or pass --treat-as-tied to use the embedding as head");
  if (options.headers == nullptr) throw missing;
  options.headers->problems.emplace_back(missing.what());
  return true;
}

constexpr std::string_view kWeight = ".weight";

Linear head_linear(const std::string& tensor, const DecoderSpec& spec) {
  return {tensor.substr(0, tensor.size() - kWeight.size()), spec.hidden, spec.vocab, false, nullptr, {}};
}

// The stored head, plain or quantized, or the embedding.
OutputHead open_head(const Weights& weights, const std::string& name, const DecoderSpec& spec,
                     const ModelOptions& options, const at::Tensor& embedding) {
  const Linear head = head_linear(name, spec);
  // Somebody else checks it.
  if (options.headers != nullptr && options.headers->is_packed && options.headers->is_packed(head.name))
    return {embedding};
  if (options.quantized_head) {
    if (OutputHead packed = options.quantized_head(weights.checkpoint(), head); packed.weight.defined())
      return packed;
  }
  if (head_is_embedding(weights.checkpoint(), name, spec, options)) return {embedding};
  return {weights.stored(name, {spec.vocab, spec.hidden})};
}

bool has_final_gate(const DecoderSpec& spec) {
  return spec.streams && spec.streams->kind == StreamSpec::Kind::gated;
}

Weights open_weights(const std::shared_ptr<const Checkpoint>& checkpoint, const ModelOptions& options) {
  const Weights weights(checkpoint, options.dtype, options.quantized, options.keep_experts, options.decorate);
  return options.headers == nullptr ? weights : weights.surveying(*options.headers);
}

}  // namespace

Model::Model(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options)
    : family_(find_family(config_of(*checkpoint))),
      spec_(family_.describe(config_of(*checkpoint))),
      weights_(open_weights(checkpoint, options)),
      prefix_(find_prefix(*checkpoint)),
      head_name_(find_head(*checkpoint)),
      embedding_(weights_.stored(prefix_ + "embed_tokens.weight", {spec_.vocab, spec_.hidden})),
      head_(open_head(weights_, head_name_, spec_, options, embedding_)),
      final_norm_(load_norm(weights_, has_final_gate(spec_) ? "" : prefix_ + "norm", {spec_.hidden},
                            spec_.norms.spec)) {
  if (has_final_gate(spec_))
    final_gate_.emplace(weights_, prefix_ + "hyper_connection_mixer", *spec_.streams);
  if (family_.match_names != nullptr) family_.match_names(spec_, *checkpoint, prefix_);
}

bool Model::tied_on_request() const { return !spec_.tied && !checkpoint().contains(head_name_); }

bool Model::tied() const { return !checkpoint().contains(head_name_); }

Linear Model::head() const {
  Linear head = head_linear(head_name_, spec_);
  if (tied()) {
    head.stored.tensor = prefix_ + "embed_tokens.weight";
    head.stored.shape = {spec_.vocab, spec_.hidden};
  }
  return head;
}

std::string Model::layer_prefix(int64_t index) const { return str(prefix_, "layers.", index, "."); }

int64_t Model::surplus_layers() const {
  const std::string start = prefix_ + "layers.";
  std::set<int64_t> surplus;
  const auto& tensors = checkpoint().tensors();
  for (auto it = tensors.lower_bound(start); it != tensors.end() && it->first.starts_with(start); ++it) {
    int64_t index = -1;
    const char* const end = it->first.data() + it->first.size();
    const auto [rest, error] = std::from_chars(it->first.data() + start.size(), end, index);
    if (error == std::errc() && rest != end && *rest == '.' && index >= spec_.layers() + spec_.mtp_layers)
      surplus.insert(index);
  }
  return static_cast<int64_t>(surplus.size());
}

ModuleTree Model::module_names(int64_t index) const {
  ModuleTree names = family_.modules(spec_, index);
  for (auto& group : names) {
    for (std::string& name : group) name.insert(0, layer_prefix(index));
  }
  return names;
}

std::vector<std::vector<Linear>> Model::survey(Weights::Survey& survey) const {
  std::vector<std::vector<Linear>> layers;
  for (int64_t i = 0; i < spec_.layers(); ++i) {
    // Not a line for each tensor of thousands of layers that nothing but a number speaks of.
    const auto first = checkpoint().tensors().lower_bound(layer_prefix(i));
    if (first == checkpoint().tensors().end() || !first->first.starts_with(layer_prefix(i))) {
      const Error missing(
          ErrorKind::corrupt_data, checkpoint().folder().string(),
          str("no tensor begins with '", layer_prefix(i), "', num_hidden_layers is ", spec_.layers()),
          "check that config.json and the weights belong together");
      survey.problems.emplace_back(missing.what());
      break;
    }
    survey.linears.clear();
    family_.layer(spec_, weights_.surveying(survey), layer_prefix(i), i);
    std::map<std::string, const Linear*> loaded;
    for (const Linear& linear : survey.linears) loaded[linear.name] = &linear;
    std::vector<Linear>& ordered = layers.emplace_back();
    for (const auto& group : module_names(i)) {
      for (const std::string& name : group) {
        GRAMIAN_CHECK(loaded.contains(name), "the module tree names ", name, ", which no block loads");
        ordered.push_back(*loaded.at(name));
      }
    }
    GRAMIAN_CHECK(ordered.size() == survey.linears.size(), "the module tree misses a linear layer of layer ",
                  i);
  }
  return layers;
}

std::vector<std::vector<Linear>> Model::survey() const {
  Weights::Survey survey;
  std::vector<std::vector<Linear>> layers = this->survey(survey);
  survey.refuse(checkpoint().folder().string());
  return layers;
}

at::Tensor Model::pack_rows(const std::vector<TokenRow>& rows) const {
  TokenRow packed;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < rows[r].size(); ++i) {
      if (rows[r][i] < 0 || rows[r][i] >= spec_.vocab) {
        throw Error(ErrorKind::invalid_argument, str("row ", r, ", position ", i),
                    str("token id ", rows[r][i], " is outside the vocabulary of ", spec_.vocab),
                    "use rows made with this model's tokenizer");
      }
    }
    packed.insert(packed.end(), rows[r].begin(), rows[r].end());
  }
  return tensor::wrap(packed.data(), {static_cast<int64_t>(packed.size())}, at::kLong, nullptr).clone();
}

BatchContext Model::context(const std::vector<TokenRow>& rows) const {
  std::vector<int64_t> lengths;
  for (const TokenRow& row : rows) lengths.push_back(static_cast<int64_t>(row.size()));
  BatchContext context = make_batch_context(lengths, spec_.ropes);
  context.ids = pack_rows(rows);
  return context;
}

at::Tensor Model::embed(const at::Tensor& ids) const {
  at::Tensor rows = embedding_.index_select(0, ids).to(dtype());
  if (spec_.streams) rows = rows.repeat({1, spec_.streams->count});
  if (spec_.embedding_scale == 1.0) return rows;
  if (!spec_.round_embedding_scale) return rows.mul(spec_.embedding_scale);
  return rows.mul(tensor::full({1}, spec_.embedding_scale, dtype()));
}

at::Tensor Model::final_norm(const at::Tensor& hidden) const {
  if (!spec_.streams) return final_norm_(hidden);
  const StreamSpec& spec = *spec_.streams;
  const at::Tensor streams = hidden.narrow(1, 0, spec.width()).contiguous();
  if (final_gate_) return final_gate_->mixed(final_gate_->normed(streams));
  return final_norm_(streams.view({hidden.size(0), spec.count, spec.hidden}).mean(1));
}

std::unique_ptr<DecoderLayer> Model::load_layer(int64_t index) const {
  return family_.layer(spec_, weights_, layer_prefix(index), index);
}

void Model::each_stored(int64_t layer, const std::function<void(const StoredTensor&)>& work) const {
  const auto& tensors = checkpoint().tensors();
  const std::string prefix = layer_prefix(layer);
  for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix); ++it)
    work(it->second);
}

void Model::drop_layer(int64_t index) const {
  each_stored(index, [](const StoredTensor& tensor) { tensor.drop(); });
}

void Model::read_ahead_layer(int64_t index) const {
  each_stored(index, [](const StoredTensor& tensor) { tensor.read_ahead(); });
}

void Model::drop_embedding() const { checkpoint().tensor(prefix_ + "embed_tokens.weight").drop(); }

at::Tensor Model::head_rows(int64_t begin, int64_t count) const {
  const at::Tensor part = head_.weight.narrow(0, begin, count);
  if (!head_.scales.defined()) return part.to(dtype()).to(at::kFloat);
  return part.to(at::kFloat).mul(head_.scales.narrow(0, begin, count).unsqueeze(1));
}

at::Tensor Model::logits(const at::Tensor& normed, ThreadPool* pool) const {
  const at::Tensor wide = normed.to(at::kFloat);
  const at::ScalarType stored = head_.weight.scalar_type();
  at::Tensor out;
  // Where the model's type holds what is stored, a few rows read it as it is.
  if (stored == dtype() || dtype() == at::kFloat || head_.scales.defined())
    out = tensor::few_rows_product(wide, head_.weight, head_.scales, pool);
  if (!out.defined()) {
    // Rows of the head widened at a time: a few megabytes, which the allocator uses again. Larger ones come from fresh
    // pages, which cost more than the product.
    constexpr int64_t kChunk = 1024;
    out = tensor::empty({normed.size(0), spec_.vocab}, at::kFloat);
    for (int64_t begin = 0; begin < spec_.vocab; begin += kChunk) {
      const int64_t count = std::min(kChunk, spec_.vocab - begin);
      out.narrow(1, begin, count).copy_(wide.matmul(head_rows(begin, count).t()));
    }
  }
  if (spec_.logit_scale != 1.0) out.mul_(spec_.logit_scale);
  if (spec_.logit_softcap > 0) out = tensor::tanh(out.div_(spec_.logit_softcap)).mul_(spec_.logit_softcap);
  return out;
}

at::ScalarType parse_dtype(const std::string& name) {
  if (name == "auto") return tensor::cpu_has_bf16() ? at::kBFloat16 : at::kFloat;
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  throw Error(ErrorKind::invalid_argument, "--dtype", str("unknown type '", name, "'"),
              "choose auto, float32, bfloat16 or float16");
}

at::Tensor run(Task<at::Tensor> task, int64_t* multiplications) {
  Execution execution(std::move(task));
  int64_t products = 0;
  while (Pause* pause = execution.advance()) products += multiply(*pause);
  if (multiplications != nullptr) *multiplications += products;
  return execution.result();
}

}  // namespace gramian
