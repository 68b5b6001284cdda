#include "models/sharing/election.h"

#include <utility>

#include "base/error.h"

namespace gramian {

Election elect(const SharingPlan& plan, const std::vector<Candidate>& candidates) {
  Election election;
  std::map<std::pair<const SharingGroup*, size_t>, const Candidate*> leaders;
  for (const Candidate& candidate : candidates) {
    const SharingGroup* group = plan.group_for(candidate.name);
    if (group == nullptr || !group->is_explicit || !candidate.shares) continue;
    const auto [found, leads] =
        leaders.try_emplace({group, group->subset_index_of(candidate.name)}, &candidate);
    if (leads) continue;
    const Candidate& leader = *found->second;
    if (candidate.columns == leader.columns && candidate.settings == leader.settings) {
      election.leader_of[candidate.name] = leader.name;
      continue;
    }
    election.warnings.push_back(
        str(candidate.name, " reads the input of ", leader.name, " but sums it alone: ",
            candidate.columns != leader.columns
                ? str(candidate.columns, " columns, not ", leader.columns)
                : str("its settings are ", candidate.settings, ", not ", leader.settings)));
  }
  return election;
}

}  // namespace gramian
