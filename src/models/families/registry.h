// Every family built so far. A new one: its file here, its declaration below, its line in registry.cpp.
#pragma once

#include "models/families/trees.h"
#include "models/family.h"

namespace gramian {

Family cohere();
Family cohere2();
Family deepseek_v3();
Family gemma();
Family gemma2();
Family gemma3_text();
Family glm4_moe();
Family glm5_next();
Family gpt_oss();
Family granite();
Family kimi_linear();
Family llama();
Family llama4_text();
Family mistral();
Family mixtral();
Family olmo2();
Family olmo_hybrid();
Family phi3();
Family qwen2();
Family qwen2_moe();
Family qwen2_vl();
Family qwen3();
Family qwen3_5_moe_text();
Family qwen3_5_text();
Family qwen3_moe();
Family qwen3_next();
Family qwen4_exp_text();
Family stablelm();

}  // namespace gramian
