// The activations between two layers as files: what a job that stopped goes on from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace gramian {

// Calls its argument once for every batch, in any order, perhaps on several threads.
using EachBatch = std::function<void(const std::function<void(size_t batch)>& work)>;

// Writes `batches` into the new folder `folder`; returns their digest. Throws io.
std::string save_batches(const std::filesystem::path& folder, const std::vector<at::Tensor>& batches,
                         const EachBatch& each);
// Hands out what save_batches() wrote, when it has this digest and is of batches of the types and shapes of `like` (the last
// size may be another one); false, and nothing handed out, otherwise.
bool load_batches(const std::filesystem::path& folder, const std::string& digest,
                  const std::vector<at::Tensor>& like, const EachBatch& each,
                  const std::function<void(size_t batch, const at::Tensor& stored)>& take);

}  // namespace gramian
