// Every family built so far. A new one: its file here, its declaration below, its line in registry.cpp.
#pragma once

#include "models/family.h"

namespace gramian {

Family llama();
Family qwen2();

}  // namespace gramian
