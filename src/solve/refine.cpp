#include "solve/refine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/solve/descent.h"
#include "solve/grouping.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// What all chunks of rows share.
struct Plan {
  const float* weight;   // [N, K]
  const float* hessian;  // [K, K]
  float damp;
  int64_t rows, columns, groups, group_size;
  const int32_t* group;  // [K]
  const SolveOptions& options;
  CpuLevel level;
  int code_min, code_max;
};

// Visits of QQQ's integers: what their rounding costs is made good by the first.
constexpr int kTwoScaleSweeps = 2;

struct Outcome {
  double before = 0, after = 0;
  int64_t changed = 0;
};

class ChunkRefine {
 public:
  ChunkRefine(const Plan& plan, int64_t first_row)
      : plan_(plan),
        first_row_(first_row),
        rows_(std::min(kBlockRows, plan.rows - first_row)),
        codes_(plan.columns * kBlockRows),
        gradient_(plan.columns * kBlockRows),
        scale_(plan.groups * kBlockRows, 1.0f),
        least_(plan.groups * kBlockRows),
        most_(plan.groups * kBlockRows),
        frozen_(plan.groups * kBlockRows),
        step_(kBlockColumns * kBlockRows),
        rounding_(kBlockColumns * kBlockRows),
        local_(kBlockColumns * kBlockRows),
        moved_(kBlockColumns * kBlockRows),
        moved_rows_(kBlockColumns),
        block_(kBlockColumns * kBlockColumns) {}

  Outcome run(QuantizedLinear& module) {
    load(module);
    compute_gradient();
    Outcome outcome;
    outcome.before = objective();
    for (int sweep = 0; sweep < plan_.options.refine && visit(&outcome.changed); ++sweep) {
    }
    round_dead_columns();
    if (module.channel_scale.defined()) {
      take_two_scales();
      for (int sweep = 0; sweep < std::min(plan_.options.refine, kTwoScaleSweeps) && visit(&outcome.changed);
           ++sweep) {
      }
    }
    outcome.after = objective();
    store(module);
    return outcome;
  }

 private:
  void load(const QuantizedLinear& module) {
    const auto* codes = module.codes.const_data_ptr<int8_t>() + first_row_ * plan_.columns;
    const float* scale = module.scale.const_data_ptr<float>() + first_row_ * plan_.groups;
    const int8_t* zero =
        module.zero.defined() ? module.zero.const_data_ptr<int8_t>() + first_row_ * plan_.groups : nullptr;
    for (int64_t group = 0; group < plan_.groups; ++group) {
      for (int64_t r = 0; r < kBlockRows; ++r) {
        const int64_t at = group * kBlockRows + r;
        const int point = zero != nullptr && r < rows_ ? zero[r * plan_.groups + group] : 0;
        least_[at] = static_cast<float>(plan_.code_min - point);
        most_[at] = static_cast<float>(plan_.code_max - point);
        if (r < rows_) scale_[at] = scale[r * plan_.groups + group];
        frozen_[at] = !plan_.options.fill_zero_groups;
      }
    }
    for (int64_t r = 0; r < rows_; ++r) {
      const float* weight = plan_.weight + (first_row_ + r) * plan_.columns;
      for (int64_t j = 0; j < plan_.columns; ++j) {
        const int64_t group = plan_.group[j];
        const int point = zero == nullptr ? 0 : zero[r * plan_.groups + group];
        codes_[j * kBlockRows + r] = static_cast<float>(codes[r * plan_.columns + j] - point);
        if (weight[j] != 0) frozen_[group * kBlockRows + r] = 0;
      }
    }
    // No code but 0 of a group of zeros.
    for (size_t at = 0; at < frozen_.size(); ++at) {
      if (frozen_[at]) least_[at] = most_[at] = 0;
    }
  }

  float weight_of(int64_t column, int64_t r) const {
    const int64_t at = plan_.group[column] * kBlockRows + r;
    const float code = codes_[column * kBlockRows + r];
    return ratio_.empty() ? code * scale_[at] : std::nearbyint(code * ratio_[at]) * channel_[r];
  }

  float error_of(int64_t column, int64_t r) const {
    return plan_.weight[(first_row_ + r) * plan_.columns + column] - weight_of(column, r);
  }

  // gradient_ -= step · (H + λI), of a step in the columns [begin, begin + count).
  void apply(const float* step, int64_t begin, int64_t count) {
    // Late sweeps move few codes: columns without a step are left out.
    int64_t moved = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float* column = step + i * kBlockRows;
      if (std::all_of(column, column + kBlockRows, [](float value) { return value == 0; })) continue;
      std::copy_n(column, kBlockRows, moved_.begin() + moved * kBlockRows);
      moved_rows_[moved++] = static_cast<int32_t>(i);
    }
    subtract_product({.steps = moved_.data(),
                      .columns = moved,
                      .matrix = plan_.hessian + begin * plan_.columns,
                      .stride = plan_.columns,
                      .rows_of = moved_rows_.data(),
                      .width = plan_.columns,
                      .into = gradient_.data()},
                     plan_.level);
    float* own = gradient_.data() + begin * kBlockRows;
    for (int64_t i = 0; i < count * kBlockRows; ++i) own[i] -= plan_.damp * step[i];
  }

  void compute_gradient() {
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    for (int64_t begin = 0; begin < plan_.columns; begin += kBlockColumns) {
      const int64_t count = std::min(kBlockColumns, plan_.columns - begin);
      std::fill(step_.begin(), step_.end(), 0.0f);
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t r = 0; r < rows_; ++r) step_[j * kBlockRows + r] = -error_of(begin + j, r);
      }
      apply(step_.data(), begin, count);
    }
  }

  double objective() const {
    double sum = 0;
    for (int64_t j = 0; j < plan_.columns; ++j) {
      for (int64_t r = 0; r < rows_; ++r)
        sum += static_cast<double>(error_of(j, r)) * gradient_[j * kBlockRows + r];
    }
    return sum;
  }

  // Visits every code once, and every scale where they are to move; whether anything changed.
  bool visit(int64_t* changed) {
    const bool scales = plan_.options.refine_scales && ratio_.empty();
    bool moved = false;
    for (int64_t begin = 0; begin < plan_.columns; begin += kBlockColumns) {
      const int64_t count = std::min(kBlockColumns, plan_.columns - begin);
      load_block(begin, count);
      if (!rounded_to_two_scales_) round_block(begin, count);
      const int64_t codes = descend({.columns = count,
                                     .gradient = local_.data(),
                                     .hessian = block_.data(),
                                     .group = plan_.group + begin,
                                     .scale = scale_.data(),
                                     .least = least_.data(),
                                     .most = most_.data(),
                                     .ratio = ratio_.empty() ? nullptr : ratio_.data(),
                                     .channel = ratio_.empty() ? nullptr : channel_.data(),
                                     .codes = codes_.data() + begin * kBlockRows,
                                     .step = step_.data()},
                                    plan_.level);
      *changed += codes;
      moved |= codes > 0;
      if (scales && kBlockColumns % plan_.group_size == 0) {
        take_locally(step_, count);
        for (int64_t at = 0; at < count; at += plan_.group_size)
          moved |= move_scale(begin, at, std::min(at + plan_.group_size, count));
      }
      for (size_t i = 0; i < step_.size(); ++i) step_[i] += rounding_[i];
      apply(step_.data(), begin, count);
    }
    rounded_to_two_scales_ = true;
    if (scales && kBlockColumns % plan_.group_size != 0) {
      for (int64_t group = 0; group < plan_.groups; ++group) moved |= move_wide_scale(group);
    }
    return moved;
  }

  // Columns that calibration never excited are rounded, with the scale that their group has now.
  void round_dead_columns() {
    if (plan_.options.clear_dead_columns) return;
    for (int64_t j = 0; j < plan_.columns; ++j) {
      if (plan_.hessian[j * plan_.columns + j] > 0) continue;
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t at = plan_.group[j] * kBlockRows + r;
        const float before = weight_of(j, r), weight = plan_.weight[(first_row_ + r) * plan_.columns + j];
        codes_[j * kBlockRows + r] = std::nearbyint(std::clamp(weight / scale_[at], least_[at], most_[at]));
        gradient_[j * kBlockRows + r] -= plan_.damp * (weight_of(j, r) - before);
      }
    }
  }

  // H + λI and the gradient of a block of columns.
  void load_block(int64_t begin, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const float* row = plan_.hessian + (begin + i) * plan_.columns + begin;
      std::copy_n(row, count, block_.begin() + i * kBlockColumns);
      // A column that calibration never excited is not visited.
      if (row[i] > 0) block_[i * kBlockColumns + i] += plan_.damp;
    }
    std::copy_n(gradient_.begin() + begin * kBlockRows, count * kBlockRows, local_.begin());
    std::fill(rounding_.begin(), rounding_.end(), 0.0f);
  }

  // What a step in the block does to its own gradient.
  void take_locally(const std::vector<float>& step, int64_t count) {
    subtract_product({.steps = step.data(),
                      .columns = count,
                      .matrix = block_.data(),
                      .stride = kBlockColumns,
                      .width = count,
                      .into = local_.data()},
                     plan_.level);
  }

  // The block goes from code · scale to the integers that QQQ's runtime multiplies with.
  void round_block(int64_t begin, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t at = plan_.group[begin + j] * kBlockRows + r;
        const float code = codes_[(begin + j) * kBlockRows + r];
        rounding_[j * kBlockRows + r] = weight_of(begin + j, r) - code * scale_[at];
      }
    }
    take_locally(rounding_, count);
  }

  // Of one group with codes c a change d of its scale changes J by d² c H cᵀ - 2 d G·c: least at d = G·c / c H cᵀ. `product` is
  // -c H. Returns whether any row's scale moved, and by how much.
  bool best_scales(int64_t group, const float* codes, const float* gradient, const float* product,
                   int64_t columns, float* change) {
    bool any = false;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t at = group * kBlockRows + r;
      if (frozen_[at]) continue;
      double slope = 0, curvature = 0;
      for (int64_t j = 0; j < columns; ++j) {
        const double code = codes[j * kBlockRows + r];
        slope += code * gradient[j * kBlockRows + r];
        curvature -= code * product[j * kBlockRows + r];
      }
      if (!(curvature > 0)) continue;
      const float wanted = scale_[at] + static_cast<float>(slope / curvature);
      if (!(wanted > 0) || !std::isfinite(wanted)) continue;
      const float next = stored_scale(wanted, plan_.options.grid.scale_type);
      const double step = static_cast<double>(next) - scale_[at];
      if (!std::isfinite(next) || !(2 * step * slope - step * step * curvature > 0)) continue;
      change[r] = next - scale_[at];
      scale_[at] = next;
      any = true;
    }
    return any;
  }

  // Of a group inside the block, columns [from, to) of it: the change joins step_, and the block's gradient.
  bool move_scale(int64_t begin, int64_t from, int64_t to) {
    const float* codes = codes_.data() + (begin + from) * kBlockRows;
    std::vector<float> product(kBlockColumns * kBlockRows);
    subtract_product({.steps = codes,
                      .columns = to - from,
                      .matrix = block_.data() + from * kBlockColumns,
                      .stride = kBlockColumns,
                      .width = kBlockColumns,
                      .into = product.data()},
                     plan_.level);
    float change[kBlockRows] = {};
    if (!best_scales(plan_.group[begin + from], codes, local_.data() + from * kBlockRows,
                     product.data() + from * kBlockRows, to - from, change))
      return false;
    for (int64_t i = 0; i < kBlockColumns * kBlockRows; ++i) local_[i] += change[i % kBlockRows] * product[i];
    float* step = step_.data() + from * kBlockRows;
    for (int64_t i = 0; i < (to - from) * kBlockRows; ++i) step[i] += change[i % kBlockRows] * codes[i];
    return true;
  }

  // Of a group that is no part of a block.
  bool move_wide_scale(int64_t group) {
    const int64_t begin = group * plan_.group_size, end = std::min(begin + plan_.group_size, plan_.columns);
    std::vector<float> product(gradient_.size());
    gradient_.swap(product);
    for (int64_t b = begin; b < end; b += kBlockColumns)
      apply(codes_.data() + b * kBlockRows, b, std::min(kBlockColumns, end - b));
    gradient_.swap(product);
    float change[kBlockRows] = {};
    if (!best_scales(group, codes_.data() + begin * kBlockRows, gradient_.data() + begin * kBlockRows,
                     product.data() + begin * kBlockRows, end - begin, change))
      return false;
    for (size_t i = 0; i < gradient_.size(); ++i) gradient_[i] += change[i % kBlockRows] * product[i];
    return true;
  }

  // From here on weights are what QQQ's runtime multiplies with, under the channel scales that the codes ask for now; the next
  // visit takes the gradient along.
  void take_two_scales() {
    rounded_to_two_scales_ = false;
    ratio_.assign(scale_.size(), 1.0f);
    channel_.assign(kBlockRows, 0.0f);
    for (int64_t j = 0; j < plan_.columns; ++j) {
      for (int64_t r = 0; r < rows_; ++r) {
        const float code = codes_[j * kBlockRows + r];
        channel_[r] =
            std::max(channel_[r], std::fabs(code) * scale_[plan_.group[j] * kBlockRows + r] / 127.0f);
      }
    }
    for (int64_t r = 0; r < kBlockRows; ++r) {
      if (channel_[r] == 0) channel_[r] = 1.0f / 127.0f;
      for (int64_t group = 0; group < plan_.groups; ++group) {
        const int64_t at = group * kBlockRows + r;
        if (r >= rows_ || frozen_[at]) continue;
        const float ratio = c10::Half(scale_[at] / channel_[r]);
        if (!std::isfinite(ratio) || ratio == 0) {  // zeros, whatever they are scaled with
          least_[at] = most_[at] = 0;
          continue;
        }
        ratio_[at] = ratio;
        // No integer beyond int8's symmetric range.
        const float reach = std::floor(127.49f / ratio);
        least_[at] = std::max(least_[at], -reach);
        most_[at] = std::min(most_[at], reach);
      }
    }
  }

  void store(QuantizedLinear& module) const {
    auto* codes = module.codes.mutable_data_ptr<int8_t>() + first_row_ * plan_.columns;
    float* scale = module.scale.mutable_data_ptr<float>() + first_row_ * plan_.groups;
    const int8_t* zero =
        module.zero.defined() ? module.zero.const_data_ptr<int8_t>() + first_row_ * plan_.groups : nullptr;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t j = 0; j < plan_.columns; ++j) {
        const int point = zero == nullptr ? 0 : zero[r * plan_.groups + plan_.group[j]];
        codes[r * plan_.columns + j] =
            static_cast<int8_t>(codes_[j * kBlockRows + r] + static_cast<float>(point));
      }
      for (int64_t group = 0; group < plan_.groups; ++group)
        scale[r * plan_.groups + group] = scale_[group * kBlockRows + r];
    }
    if (!channel_.empty())
      std::copy_n(channel_.begin(), rows_, module.channel_scale.mutable_data_ptr<float>() + first_row_);
  }

  const Plan& plan_;
  int64_t first_row_, rows_;
  std::vector<float> codes_;                 // [K][kBlockRows], code - zero
  std::vector<float> gradient_;              // [K][kBlockRows], (W - Q)(H + λI)
  std::vector<float> scale_, least_, most_;  // [groups][kBlockRows]
  std::vector<uint8_t> frozen_;              // groups of zeros, which stay
  std::vector<float> ratio_, channel_;       // QQQ's two scales, once they are in use
  bool rounded_to_two_scales_ = true;        // whether gradient_ is theirs already
  std::vector<float> step_, rounding_;       // of a block, [kBlockColumns][kBlockRows]
  std::vector<float> local_;                 // gradient of a block
  std::vector<float> moved_;                 // step_ without its columns of zeros
  std::vector<int32_t> moved_rows_;          // where they stood
  std::vector<float> block_;                 // H + λI of a block
};

}  // namespace

void refine(QuantizedLinear& module, const at::Tensor& weight, const at::Tensor& hessian,
            const SolveOptions& options, ThreadPool& pool) {
  const Grouping grouping = resolve_grouping(weight, options.grid);
  GRAMIAN_CHECK(hessian.size(0) == grouping.columns && hessian.scalar_type() == at::kFloat,
                "Hessian of another module");
  const at::Tensor source = finite_weight(weight), h = hessian.contiguous();
  std::vector<int32_t> group(grouping.columns);
  for (int64_t j = 0; j < grouping.columns; ++j) group[j] = static_cast<int32_t>(j / grouping.group_size);
  const bool scattered = module.group_index.defined();
  if (scattered) std::copy_n(module.group_index.const_data_ptr<int32_t>(), grouping.columns, group.begin());
  SolveOptions settings = options;
  settings.refine_scales = options.refine_scales && !scattered;
  const Plan plan = {source.const_data_ptr<float>(),
                     h.const_data_ptr<float>(),
                     static_cast<float>(module.damp),
                     grouping.rows,
                     grouping.columns,
                     grouping.groups(),
                     grouping.group_size,
                     group.data(),
                     settings,
                     cpu_level(),
                     grouping.rule.code_min(),
                     grouping.rule.code_max()};
  if (options.grid.kind == GridKind::qqq && grouping.groups() > 1)
    module.channel_scale = tensor::empty({grouping.rows}, at::kFloat);
  const int64_t chunks = (grouping.rows + kBlockRows - 1) / kBlockRows;
  std::vector<Outcome> outcomes(chunks);
  pool.run(chunks,
           [&](int64_t chunk) { outcomes[chunk] = ChunkRefine(plan, chunk * kBlockRows).run(module); });
  double before = 0, after = 0;
  int64_t changed = 0;
  for (const Outcome& outcome : outcomes) {
    before += outcome.before;
    after += outcome.after;
    changed += outcome.changed;
  }
  module.refined = {.codes = changed, .gain = before > 0 ? 1 - after / before : 0};
}

}  // namespace gramian
