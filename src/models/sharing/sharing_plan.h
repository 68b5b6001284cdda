// Which modules of a decoder layer take their statistics from one input: groups, each with a leader whose sums are made and
// followers that adopt them. Built from a module tree; pure and immutable, so any number of threads may build and read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/sharing/layer_tree.h"

namespace gramian {

struct SharingGroup {
  std::string key;     // "PARENT:in=TAG", or of an untagged module its name
  std::string parent;  // path without its last part
  std::vector<std::string> modules;
  std::vector<size_t> subset_indices;  // of each, the block it stands in
  bool is_explicit = false;            // by a tag

  const std::string& leader() const { return modules.front(); }
  std::vector<std::string> followers() const { return {modules.begin() + 1, modules.end()}; }
  bool is_shared() const { return modules.size() > 1; }
  bool spans_subsets() const;
  std::vector<std::string> members_in_subset(size_t subset) const;
  // Of a member; throws internal for another name.
  size_t subset_index_of(const std::string& module) const;
  // Members behind an earlier one in the same block: every block has its own leader, as a later block may see other inputs.
  std::vector<std::string> dedup_followers() const;
  bool dedups_at_runtime() const { return !dedup_followers().empty(); }
};

class SharingPlan {
 public:
  SharingPlan() = default;
  // Without `explicit_tags` every module stands alone. Throws internal for a module in two groups, which blocks() cannot give.
  SharingPlan(const LayerTree& tree, const Blocks& blocks, bool explicit_tags);

  const std::vector<SharingGroup>& groups() const noexcept { return groups_; }
  std::vector<std::string> modules() const;
  std::vector<SharingGroup> shared_groups() const;
  std::vector<std::string> leaders() const;
  // Null for an unknown name.
  const SharingGroup* group_for(const std::string& module) const;
  // An unknown name leads itself.
  std::string leader_for(const std::string& module) const;
  // Empty unless the module leads.
  std::vector<std::string> followers_of(const std::string& module) const;
  bool shares_input(const std::string& a, const std::string& b) const;
  bool is_explicit(const std::string& module) const;

  // The groups with some members left out, under the same keys and in the same order.
  SharingPlan for_subset(size_t subset) const;
  SharingPlan filter_modules(const std::vector<std::string>& names) const;
  // Keys, parents and modules behind "PREFIX.".
  SharingPlan with_prefix(const std::string& prefix) const;

  // Sums that need not be made.
  int64_t dedup_count() const;

 private:
  template <class Keep>
  SharingPlan restricted(const Keep& keep) const;
  void index();
  std::vector<SharingGroup> groups_;
  std::map<std::string, size_t> group_of_;
};

}  // namespace gramian
