#include "formats/qqq.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "tensor/ops.h"

namespace gramian::qqq {
namespace {

constexpr int64_t kGroup = 128;
constexpr int64_t kTileK = 16;  // one row of B
constexpr int64_t kTileN = 64;  // 128 words of a row of B
constexpr int64_t kTileWords = 128;

// Word i·4 + j of a tile holds output channels 16j + i/4 + 8b and inputs 4(i mod 4) + r; this is the bit
// where the nibble of (b, r) starts.
using NibbleShifts = std::array<std::array<int, 4>, 2>;

constexpr NibbleShifts nibble_shifts(bool grouped) {
  NibbleShifts shifts{};
  for (int b = 0; b < 2; ++b) {
    for (int r = 0; r < 4; ++r) shifts[b][r] = 4 * (grouped ? 2 * b + r / 2 + 4 * (r % 2) : 2 * r + 1 - b);
  }
  return shifts;
}

// Calls visit(code row of channel n, code row of channel n + 8, word) for every word of B; both rows start at
// the first of the word's four inputs.
template <class Code, class Word, class Visit>
void for_each_word(Code* codes, Word* words, int64_t n, int64_t k, const Visit& visit) {
  for (int64_t tile_n = 0; tile_n < n / kTileN; ++tile_n) {
    for (int64_t tile_k = 0; tile_k < k / kTileK; ++tile_k) {
      Word* tile = words + tile_k * 2 * n + tile_n * kTileWords;
      for (int64_t word = 0; word < kTileWords; ++word) {
        const int64_t i = word / 4, j = word % 4;
        Code* row = codes + (tile_n * kTileN + 16 * j + i / 4) * k + tile_k * kTileK + 4 * (i % 4);
        visit(row, row + 8 * k, tile[word]);
      }
    }
  }
}

template <bool kGrouped>
void pack_words(const int8_t* codes, uint32_t* words, int64_t n, int64_t k) {
  constexpr NibbleShifts shifts = nibble_shifts(kGrouped);
  constexpr int offset = kGrouped ? 8 : 0;
  for_each_word(codes, words, n, k, [&](const int8_t* low, const int8_t* high, uint32_t& word) {
    uint32_t packed = 0;
    for (int r = 0; r < 4; ++r) {
      packed |= static_cast<uint32_t>((low[r] + offset) & 15) << shifts[0][r];
      packed |= static_cast<uint32_t>((high[r] + offset) & 15) << shifts[1][r];
    }
    word = packed;
  });
}

template <bool kGrouped>
void unpack_words(const uint32_t* words, int8_t* codes, int64_t n, int64_t k) {
  constexpr NibbleShifts shifts = nibble_shifts(kGrouped);
  // Offset binary: nibble - 8. Two's complement: (nibble ^ 8) - 8.
  constexpr uint32_t flip = kGrouped ? 0 : 8;
  for_each_word(codes, words, n, k, [&](int8_t* low, int8_t* high, const uint32_t& word) {
    for (int r = 0; r < 4; ++r) {
      low[r] = static_cast<int8_t>(static_cast<int>(((word >> shifts[0][r]) & 15u) ^ flip) - 8);
      high[r] = static_cast<int8_t>(static_cast<int>(((word >> shifts[1][r]) & 15u) ^ flip) - 8);
    }
  });
}

// Column that stands at `position` of the stored scales.
int64_t channel_column(int64_t position) {
  const int64_t q = position % 32;
  return position - q + 2 * (q / 8) + q % 2 + 8 * ((q % 8) / 2);
}
int64_t group_column(int64_t position) {
  const int64_t q = position % 64;
  return position - q + q / 8 + 8 * (q % 8);
}

at::Tensor plain_f32(const at::Tensor& tensor) { return tensor.to(at::kFloat).contiguous(); }

bool all_finite(const at::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

bool is_float(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kHalf ||
         tensor.scalar_type() == at::kBFloat16;
}

std::string shape_text(const at::Tensor& tensor) {
  return tensor.defined() ? gramian::str(c10::toString(tensor.scalar_type()), " ", tensor.sizes())
                          : "nothing";
}

bool is_grouped(const Packed& packed) { return packed.s_group.defined() && packed.s_group.numel() > 0; }

void check_codes(const QuantizedLinear& module, const std::string& name) {
  const at::Tensor& codes = module.codes;
  GRAMIAN_CHECK(codes.defined() && codes.dim() == 2 && codes.scalar_type() == at::kChar, name, ": codes are ",
                shape_text(codes));
  const int64_t n = codes.size(0), k = codes.size(1);
  GRAMIAN_CHECK(module.group_size == k || module.group_size == kGroup, name, ": group size ",
                module.group_size);
  const std::string misfit = unfit_reason(n, k, module.group_size == k ? -1 : kGroup);
  GRAMIAN_CHECK(misfit.empty(), name, ": ", misfit);
  GRAMIAN_CHECK(module.scale.defined() && module.scale.sizes() == at::IntArrayRef({n, k / module.group_size}),
                name, ": scales are ", shape_text(module.scale));
  const int64_t low = codes.min().item<int64_t>(), high = codes.max().item<int64_t>();
  GRAMIAN_CHECK(low >= -8 && high <= 7, name, ": codes from ", low, " to ", high, ", four bits hold -8 to 7");
}

// Stored s_group [K/128, N]: scale / channel_scale, one f32 division, rounded to f16.
at::Tensor stored_group_scale(const QuantizedLinear& module, const at::Tensor& channel_scale,
                              const std::string& name) {
  const int64_t n = module.codes.size(0), groups = module.scale.size(1);
  const at::Tensor ratio = plain_f32(module.scale).div(channel_scale.unsqueeze(1));
  at::Tensor half = ratio.to(at::kHalf);
  if (!all_finite(half)) {
    // A group of zeros keeps its zeros under any ratio; the scale of such a group may be far above its row's.
    const at::Tensor zeros = module.codes.reshape({n, groups, kGroup}).eq(0).all(2);
    half = half.masked_fill(zeros.logical_and(half.isfinite().logical_not()), 1.0);
    if (!all_finite(half)) {
      throw Error(ErrorKind::numerical, name + ".s_group",
                  "a group scale over its channel scale is not finite in f16 (largest value 65504)",
                  "take the channel scale from the codes, or leave this module unquantized");
    }
  }
  const at::Tensor plain = half.contiguous();
  at::Tensor stored = tensor::empty({groups, n}, at::kHalf);
  const auto* from = plain.const_data_ptr<at::Half>();
  auto* to = stored.mutable_data_ptr<at::Half>();
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t position = 0; position < n; ++position) {
      to[group * n + position] = from[group_column(position) * groups + group];
    }
  }
  return stored;
}

at::Tensor plain_channel_scale(const at::Tensor& stored) {
  const at::Tensor from = plain_f32(stored);
  const int64_t n = from.numel();
  at::Tensor plain = tensor::empty({n}, at::kFloat);
  const auto* source = from.const_data_ptr<float>();
  auto* target = plain.mutable_data_ptr<float>();
  for (int64_t position = 0; position < n; ++position) target[channel_column(position)] = source[position];
  return plain;
}

// f32 [K/128, N] in plain order. A code of 0 stays 0 whatever the ratio is: other writers store an infinite one for groups of
// zeros, which becomes 1.
at::Tensor plain_ratios(const at::Tensor& s_group, const at::Tensor& codes, const std::string& name) {
  const int64_t n = codes.size(0), k = codes.size(1);
  const at::Tensor stored = plain_f32(s_group);
  at::Tensor plain = tensor::empty({k / kGroup, n}, at::kFloat);
  const auto* from = stored.const_data_ptr<float>();
  auto* to = plain.mutable_data_ptr<float>();
  const auto* values = codes.const_data_ptr<int8_t>();
  for (int64_t group = 0; group < k / kGroup; ++group) {
    for (int64_t position = 0; position < n; ++position) {
      const int64_t channel = group_column(position);
      float ratio = from[group * n + position];
      if (!std::isfinite(ratio)) {
        const int8_t* row = values + channel * k + group * kGroup;
        if (std::any_of(row, row + kGroup, [](int8_t code) { return code != 0; })) {
          throw Error(
              ErrorKind::corrupt_data, name + ".s_group",
              str("expected finite ratios, found ", ratio, " for channel ", channel, ", group ", group),
              "quantize the model again");
        }
        ratio = 1.0f;
      }
      to[group * n + channel] = ratio;
    }
  }
  return plain;
}

// values = clamp(rne(code · ratio), -128, 127), in place over the codes [N, K]. Returns how many were clamped.
int64_t apply_ratios(at::Tensor& codes, const at::Tensor& ratios) {
  const int64_t n = codes.size(0), k = codes.size(1);
  const auto* ratio = ratios.const_data_ptr<float>();
  auto* values = codes.mutable_data_ptr<int8_t>();
  int64_t saturated = 0;
  for (int64_t group = 0; group < k / kGroup; ++group) {
    for (int64_t channel = 0; channel < n; ++channel) {
      int8_t* row = values + channel * k + group * kGroup;
      // Sixteen codes, one table: the rounding happens once per code and group.
      std::array<int8_t, 16> table{};
      std::array<int64_t, 16> leaves{};
      for (int code = -8; code < 8; ++code) {
        const float exact = std::nearbyint(static_cast<float>(code) * ratio[group * n + channel]);
        leaves[code + 8] = exact < -128.0f || exact > 127.0f ? 1 : 0;
        table[code + 8] = static_cast<int8_t>(std::fmin(std::fmax(exact, -128.0f), 127.0f));
      }
      for (int64_t i = 0; i < kGroup; ++i) {
        const int code = row[i];
        saturated += leaves[code + 8];
        row[i] = table[code + 8];
      }
    }
  }
  return saturated;
}

}  // namespace

at::Tensor Decoded::weight() const { return values.to(at::kFloat).mul(s_channel.unsqueeze(1)); }

std::string unfit_reason(int64_t n, int64_t k, int64_t group_size) {
  if (group_size != -1 && group_size != kGroup) {
    return str("group size ", group_size, " is not part of QQQ; use 128, or -1 for one scale per row");
  }
  if (n <= 0 || k <= 0 || !((k % 128 == 0 && n % 64 == 0) || (k % 64 == 0 && n % 128 == 0))) {
    return str(k, " inputs and ", n,
               " outputs fit no tile (inputs a multiple of 128 and outputs of 64, or inputs of 64 and "
               "outputs of 128); leave this module unquantized");
  }
  if (group_size == kGroup && k % kGroup != 0) {
    return str(
        k,
        " inputs are not a multiple of the group size 128; use group size -1 for this module, or leave it "
        "unquantized");
  }
  return "";
}

at::Tensor channel_scale_from_codes(const QuantizedLinear& module) {
  const int64_t n = module.codes.size(0), groups = module.scale.size(1);
  const at::Tensor largest = module.codes.reshape({n, groups, -1}).abs().amax({2}).to(at::kFloat);
  const at::Tensor scale = largest.mul(module.scale.to(at::kFloat).abs()).amax({1}).div(127.0);
  return scale.masked_fill(scale.eq(0), 1.0 / 127.0);
}

at::Tensor channel_scale_from_weight(const at::Tensor& weight) {
  const at::Tensor scale = weight.to(at::kFloat).abs().amax({1}).div(127.0);
  return scale.masked_fill(scale.eq(0), 1.0 / 127.0);
}

Packed pack(const QuantizedLinear& module, const at::Tensor& channel_scale, const at::Tensor& bias,
            const std::string& name) {
  check_codes(module, name);
  const int64_t n = module.codes.size(0), k = module.codes.size(1);
  const bool grouped = module.group_size != k;
  Packed packed;
  at::Tensor by_channel;
  if (grouped) {
    GRAMIAN_CHECK(channel_scale.defined() && channel_scale.numel() == n, name, ": channel scales are ",
                  shape_text(channel_scale));
    by_channel = plain_f32(channel_scale).reshape({n});
    packed.s_group = stored_group_scale(module, by_channel, name);
  } else {
    by_channel = plain_f32(module.scale).div(16.0).reshape({n});
  }
  if (!all_finite(by_channel)) {
    throw Error(ErrorKind::numerical, name + ".s_channel", "a channel scale is not finite",
                "check the weights of this module for NaN and infinity, or leave it unquantized");
  }
  packed.s_channel = tensor::empty({1, n}, at::kFloat);
  const auto* from = by_channel.const_data_ptr<float>();
  auto* to = packed.s_channel.mutable_data_ptr<float>();
  for (int64_t position = 0; position < n; ++position) to[position] = from[channel_column(position)];

  packed.B = tensor::empty({k / kTileK, 2 * n}, at::kInt);
  const at::Tensor codes = module.codes.contiguous();
  auto* words = reinterpret_cast<uint32_t*>(packed.B.mutable_data_ptr<int32_t>());
  grouped ? pack_words<true>(codes.const_data_ptr<int8_t>(), words, n, k)
          : pack_words<false>(codes.const_data_ptr<int8_t>(), words, n, k);

  if (bias.defined()) {
    GRAMIAN_CHECK(bias.sizes() == at::IntArrayRef({n}), name, ": bias is ", shape_text(bias));
    packed.bias = bias.to(at::kHalf).contiguous();
    if (!all_finite(packed.bias)) {
      throw Error(ErrorKind::numerical, name + ".bias", "a value is not finite in f16 (largest value 65504)",
                  "leave this module unquantized");
    }
  }
  return packed;
}

at::Tensor unpack_codes(const at::Tensor& B, int64_t n, int64_t k, bool grouped) {
  GRAMIAN_CHECK(B.scalar_type() == at::kInt && B.sizes() == at::IntArrayRef({k / kTileK, 2 * n}) &&
                    k % kTileK == 0 && n % kTileN == 0,
                "B is ", shape_text(B), " for ", n, " outputs and ", k, " inputs");
  at::Tensor codes = tensor::empty({n, k}, at::kChar);
  const at::Tensor source = B.contiguous();
  const auto* words = reinterpret_cast<const uint32_t*>(source.const_data_ptr<int32_t>());
  grouped ? unpack_words<true>(words, codes.mutable_data_ptr<int8_t>(), n, k)
          : unpack_words<false>(words, codes.mutable_data_ptr<int8_t>(), n, k);
  return codes;
}

std::vector<std::string> layout_faults(const Packed& packed, int64_t n, int64_t k, const std::string& name) {
  const bool grouped = is_grouped(packed);
  const std::string misfit = unfit_reason(n, k, grouped ? kGroup : -1);
  if (!misfit.empty()) return {name + ": " + misfit};
  std::vector<std::string> faults;
  const auto expect = [&](bool right, const char* part, const std::string& expected,
                          const at::Tensor& found) {
    if (!right) faults.push_back(str(name, part, ": expected ", expected, ", found ", shape_text(found)));
  };
  const auto is = [](const at::Tensor& tensor, at::IntArrayRef shape) {
    return tensor.defined() && is_float(tensor) && tensor.sizes() == shape;
  };
  expect(packed.B.defined() && packed.B.scalar_type() == at::kInt &&
             packed.B.sizes() == at::IntArrayRef({k / kTileK, 2 * n}),
         ".B", str("Int [", k / kTileK, ", ", 2 * n, "]"), packed.B);
  expect(is(packed.s_channel, {1, n}) || is(packed.s_channel, {n}), ".s_channel", str("Float [1, ", n, "]"),
         packed.s_channel);
  if (grouped && k == kGroup) {
    expect(false, ".s_group", "none or an empty one (a row of 128 inputs is one group)", packed.s_group);
  } else {
    expect(!grouped || is(packed.s_group, {k / kGroup, n}), ".s_group",
           str("Half [", k / kGroup, ", ", n, "]"), packed.s_group);
  }
  expect(!packed.bias.defined() || is(packed.bias, {n}), ".bias", str("Half [", n, "]"), packed.bias);
  return faults;
}

std::string group_fault(const Packed& packed, int64_t k, int64_t group_size, const std::string& name) {
  if (is_grouped(packed) == (group_size != -1 && group_size != k)) return "";
  return str(name,
             ".s_group: ", is_grouped(packed) ? "group scales are stored" : "no group scales are stored",
             ", config.json says group_size ", group_size, " and the layer has ", k, " inputs");
}

Codes read_codes(const Packed& packed, int64_t n, int64_t k, const std::string& name) {
  const std::vector<std::string> faults = layout_faults(packed, n, k, name);
  if (!faults.empty()) {
    std::string all;
    for (const std::string& fault : faults) all += (all.empty() ? "" : "; ") + fault;
    throw Error(
        ErrorKind::corrupt_data, "", all,
        "the file does not hold this layer in the QQQ format, or config.json describes another model");
  }
  const bool grouped = is_grouped(packed);
  Codes codes;
  codes.s_channel = plain_channel_scale(packed.s_channel);
  if (!all_finite(codes.s_channel)) {
    throw Error(ErrorKind::corrupt_data, name + ".s_channel", "expected finite scales, found NaN or infinity",
                "quantize the model again");
  }
  codes.values = unpack_codes(packed.B, n, k, grouped);
  if (grouped) codes.ratios = plain_ratios(packed.s_group, codes.values, name);
  if (packed.bias.defined()) codes.bias = packed.bias.contiguous();
  return codes;
}

Decoded decode(const Codes& codes) {
  Decoded decoded{codes.values.clone(), codes.s_channel, codes.bias};
  if (codes.ratios.defined()) {
    decoded.saturated = apply_ratios(decoded.values, codes.ratios);
  } else {
    decoded.values.mul_(16);
  }
  return decoded;
}

Decoded unpack(const Packed& packed, int64_t n, int64_t k, const std::string& name) {
  return decode(read_codes(packed, n, k, name));
}

}  // namespace gramian::qqq
