#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/rope/rope.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// yarn's temperature correction (Peng et al. 2023, section 3.4).
double yarn_scale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double yarn_attention_factor(const ConfigReader& rope, double factor) {
  if (rope.has("attention_factor")) return rope.number("attention_factor");
  if (rope.number_or("mscale", 0.0) != 0.0 && rope.number_or("mscale_all_dim", 0.0) != 0.0) {
    return yarn_scale(factor, rope.number("mscale")) / yarn_scale(factor, rope.number("mscale_all_dim"));
  }
  return yarn_scale(factor, 1.0);
}

// What stands for a factor that a file leaves out.
double lengths_ratio(const RopeSpec& spec) {
  return static_cast<double>(spec.max_positions) / static_cast<double>(spec.original_max_positions);
}

double longrope_attention_factor(const ConfigReader& rope, const RopeSpec& spec) {
  if (rope.has("attention_factor")) return rope.number("attention_factor");
  if (spec.factor <= 1.0) return 1.0;
  if (spec.original_max_positions < 2) rope.fail("original_max_position_embeddings", "must exceed 1");
  return std::sqrt(1.0 + std::log(spec.factor) / std::log(static_cast<double>(spec.original_max_positions)));
}

std::vector<double> read_factors(const ConfigReader& rope, const std::string& key, int64_t count) {
  if (!rope.has(key)) rope.fail(key, "is missing (longrope)");
  const auto& list = rope.json().at(key);
  if (!list.is_array() || static_cast<int64_t>(list.size()) != count)
    rope.fail(key, str("must list ", count, " numbers"));
  std::vector<double> factors;
  for (const auto& value : list) {
    if (!value.is_number() || !(value.get<double>() > 0)) rope.fail(key, "must hold positive numbers");
    factors.push_back(value.get<double>());
  }
  return factors;
}

double llama3_frequency(const RopeSpec& spec, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(spec.original_max_positions);
  if (wavelength < original / spec.high_freq_factor) return frequency;
  if (wavelength > original / spec.low_freq_factor) return frequency / spec.factor;
  const double smooth =
      (original / wavelength - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor);
  return (1 - smooth) * frequency / spec.factor + smooth * frequency;
}

// Between the two correction dimensions of yarn the frequency blends from kept to divided.
double yarn_frequency(const RopeSpec& spec, double frequency, double index) {
  const auto dim = static_cast<double>(spec.rotary_dim);
  const auto correction = [&](double rotations) {
    return dim *
           std::log(static_cast<double>(spec.original_max_positions) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(spec.theta));
  };
  double low = correction(spec.beta_fast);
  double high = correction(spec.beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((index - low) / (high - low), 0.0, 1.0);
  return frequency / spec.factor * ramp + frequency * (1 - ramp);
}

}  // namespace

RopeSpec read_rope(const ConfigReader& config, int64_t head_dim) {
  // With both spellings in a file, transformers takes the older one unless it is empty.
  const ConfigReader older = config.object("rope_scaling");
  const ConfigReader rope = older.json().empty() ? config.object("rope_parameters") : older;
  RopeSpec spec;
  spec.type = rope.text_or("rope_type", rope.text_or("type", "default"));
  spec.theta = rope.number_or("rope_theta", config.number_or("rope_theta", 10000.0));
  if (!(spec.theta > 0)) config.fail("rope_theta", "must be positive");
  const double partial =
      rope.number_or("partial_rotary_factor", config.number_or("partial_rotary_factor", 1.0));
  if (!(partial > 0 && partial <= 1))
    config.fail("partial_rotary_factor", "must lie above 0 and be at most 1");
  spec.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  if (head_dim % 2 != 0 && partial == 1.0) {
    config.fail(config.has("head_dim") ? "head_dim" : "num_attention_heads",
                str("makes heads of ", head_dim, " entries: rotary positions turn pairs of them"));
  }
  if (spec.rotary_dim <= 0 || spec.rotary_dim > head_dim || spec.rotary_dim % 2 != 0) {
    config.fail("partial_rotary_factor",
                str("leaves ", spec.rotary_dim, " of ", head_dim, " head entries to rotate"));
  }
  spec.max_positions = config.integer_or("max_position_embeddings", 2048);
  spec.original_max_positions =
      config.integer_or("original_max_position_embeddings",
                        rope.integer_or("original_max_position_embeddings", spec.max_positions));
  const bool needs_factor = spec.type == "linear" || spec.type == "dynamic" || spec.type == "llama3";
  spec.factor = needs_factor ? rope.number("factor") : rope.number_or("factor", lengths_ratio(spec));
  if (!(spec.factor > 0)) rope.fail("factor", "must be positive");

  if (spec.type != "default" && rope.number_or("mscale_all_dim", 0.0) != 0.0)
    spec.mscale_all = yarn_scale(spec.factor, rope.number("mscale_all_dim"));

  if (spec.type == "llama3") {
    spec.low_freq_factor = rope.number("low_freq_factor");
    spec.high_freq_factor = rope.number("high_freq_factor");
    if (!(spec.low_freq_factor > 0 && spec.high_freq_factor > spec.low_freq_factor)) {
      rope.fail("high_freq_factor", "must exceed low_freq_factor, both positive");
    }
  } else if (spec.type == "yarn") {
    if (rope.number_or("beta_fast", 0.0) != 0.0) spec.beta_fast = rope.number("beta_fast");
    if (rope.number_or("beta_slow", 0.0) != 0.0) spec.beta_slow = rope.number("beta_slow");
    if (!(spec.beta_fast > 0 && spec.beta_slow > 0)) rope.fail("beta_fast", "and beta_slow must be positive");
    spec.truncate = rope.boolean_or("truncate", true);
    spec.attention_factor = yarn_attention_factor(rope, spec.factor);
  } else if (spec.type == "longrope" || spec.type == "su") {
    spec.type = "longrope";
    spec.short_factor = read_factors(rope, "short_factor", spec.rotary_dim / 2);
    spec.long_factor = read_factors(rope, "long_factor", spec.rotary_dim / 2);
    spec.attention_factor = longrope_attention_factor(rope, spec);
  } else if (spec.type != "default" && spec.type != "linear" && spec.type != "dynamic" &&
             spec.type != "mrope") {
    throw Error(ErrorKind::unsupported, config.where(), str("rope type '", spec.type, "'"),
                "known: default, linear, dynamic, llama3, yarn, longrope");
  }
  return spec;
}

std::vector<float> rope_frequencies(const RopeSpec& spec, int64_t length) {
  const auto dim = static_cast<double>(spec.rotary_dim);
  double theta = spec.theta;
  if (spec.type == "dynamic" && length > spec.max_positions) {
    const double stretch =
        spec.factor * static_cast<double>(length) / static_cast<double>(spec.max_positions);
    theta *= std::pow(stretch - (spec.factor - 1), dim / (dim - 2));
  }
  const bool is_long = length > spec.original_max_positions;
  std::vector<float> frequencies;
  for (int64_t j = 0; j < spec.rotary_dim / 2; ++j) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(j) / dim);
    if (spec.type == "linear") frequency /= spec.factor;
    if (spec.type == "llama3") frequency = llama3_frequency(spec, frequency);
    if (spec.type == "yarn") frequency = yarn_frequency(spec, frequency, static_cast<double>(j));
    if (spec.type == "longrope")
      frequency /= (is_long ? spec.long_factor : spec.short_factor)[static_cast<size_t>(j)];
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

RopeTable rope_table(const RopeSpec& spec, const RopeSpan& span) {
  const std::vector<float> frequencies = rope_frequencies(spec, span.whole);
  const at::Tensor frequency =
      tensor::wrap(frequencies.data(), {static_cast<int64_t>(frequencies.size())}, at::kFloat, nullptr);
  const at::Tensor angle =
      tensor::arange(span.length, at::kFloat).add_(span.begin).unsqueeze(1).mul(frequency.unsqueeze(0));
  return {angle.cos().mul_(spec.attention_factor), angle.sin().mul_(spec.attention_factor), spec.pairs};
}

namespace {

bool is_by_rows(const at::Tensor& x, const RopeTable& table) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cpu() && x.dim() == 4 && x.stride(3) == 1 && table.cos.is_contiguous() &&
         table.sin.is_contiguous() && (type == at::kFloat || type == at::kHalf || type == at::kBFloat16);
}

at::Tensor rope_by_rows(const at::Tensor& x, const RopeTable& table) {
  at::Tensor y = tensor::empty(x.sizes(), x.scalar_type());
  rope_rows(cpu_level(),
            {.type = tensor::dtype_of(x),
             .x = x.const_data_ptr(),
             .rows = x.size(0),
             .heads = x.size(1),
             .tokens = x.size(2),
             .size = x.size(3),
             .row_stride = x.stride(0),
             .head_stride = x.stride(1),
             .token_stride = x.stride(2),
             .cos = table.cos.const_data_ptr<float>(),
             .sin = table.sin.const_data_ptr<float>(),
             .half = table.cos.size(1),
             .pairs = table.pairs},
            y.mutable_data_ptr());
  return y;
}

}  // namespace

at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table) {
  if (is_by_rows(x, table)) return rope_by_rows(x, table);
  const int64_t half = table.cos.size(1);
  const at::Tensor wide = x.to(at::kFloat);
  const auto member = [&](const at::Tensor& heads, int64_t which) {
    return table.pairs ? heads.slice(-1, which, 2 * half, 2) : heads.narrow(-1, which * half, half);
  };
  const at::Tensor first = member(wide, 0), second = member(wide, 1);
  at::Tensor out = tensor::empty(x.sizes(), x.scalar_type());
  member(out, 0).copy_(first.mul(table.cos).sub_(second.mul(table.sin)));
  member(out, 1).copy_(second.mul(table.cos).add_(first.mul(table.sin)));
  const int64_t rest = x.size(-1) - 2 * half;
  if (rest > 0) out.narrow(-1, 2 * half, rest).copy_(x.narrow(-1, 2 * half, rest));
  return out;
}

}  // namespace gramian
