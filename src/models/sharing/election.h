// Whose sums of a pass are made and who adopts them: decided before any batch runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/sharing/sharing_plan.h"

namespace gramian {

// A module whose input is summed in this pass.
struct Candidate {
  std::string name;  // as in the plan
  int64_t columns = 0;
  // All that its sum depends on beside the input (which statistic, types, chunks): equal texts give equal sums.
  std::string settings;
  bool shares = true;  // its own switch
};

struct Election {
  std::map<std::string, std::string> leader_of;  // by follower
  std::vector<std::string> warnings;             // one line each: who sums alone although its group is shared
};

// Of each explicit group, and each block of it, the first candidate leads, in the order given; those with the leader's columns
// and settings follow. Others sum alone, and so does every module without a group. Pure.
Election elect(const SharingPlan& plan, const std::vector<Candidate>& candidates);

}  // namespace gramian
