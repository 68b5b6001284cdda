// Blocks of GGML's codecs in one GGUF file. A module's one part is `blocks`, u8 [N, row bytes], rows in the checkpoint's order; the
// file is laid out by formats/gguf/model_plan.h and written by pipeline/output_gguf.h.
#pragma once

#include "formats/linear_format.h"

namespace gramian {

const LinearFormat& gguf_format();

// Names of the types that --type takes, in lower case.
const std::vector<std::string>& block_type_names();
// "iq2_xxs" -> the codec. Throws invalid_argument naming --type and what there is.
const Codec& parse_block_type(const std::string& text);

}  // namespace gramian
