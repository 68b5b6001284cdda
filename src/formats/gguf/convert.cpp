#include "formats/gguf/convert.h"

#include "base/error.h"
#include "formats/gguf/model_plan.h"

namespace gramian::gguf {

void convert(const Checkpoint& checkpoint, const std::filesystem::path& output, const ConvertOptions& options,
             ThreadPool& pool, Log& log) {
  GRAMIAN_CHECK(options.type != nullptr && options.type->block == 1, "no plain type");
  ModelPlan plan =
      plan_model(checkpoint, options.name, [&](const std::string&, int64_t) { return options.type; }, log);
  plan.metadata.set("general.file_type", file_type(*options.type));
  Progress progress(log, "tensors", static_cast<int64_t>(plan.types.size()));
  write(output, plan.metadata, plan.types, [&](size_t i, const Append& append) {
    append_tensor(checkpoint, plan, i, {}, pool, append);
    progress.update(static_cast<double>(i + 1));
  });
}

}  // namespace gramian::gguf
