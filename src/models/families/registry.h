// Every family built so far. A new one: its file here, its declaration below, its line in registry.cpp.
#pragma once

#include "models/family.h"

namespace gramian {

Family gemma();
Family gemma2();
Family gemma3_text();
Family llama();
Family mistral();
Family qwen2();
Family qwen2_vl();
Family qwen3();
Family qwen3_moe();

}  // namespace gramian
