#include "models/sharing/sharing_plan.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace gramian {

bool SharingGroup::spans_subsets() const {
  return std::any_of(subset_indices.begin(), subset_indices.end(),
                     [&](size_t subset) { return subset != subset_indices.front(); });
}

std::vector<std::string> SharingGroup::members_in_subset(size_t subset) const {
  std::vector<std::string> members;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (subset_indices[i] == subset) members.push_back(modules[i]);
  }
  return members;
}

size_t SharingGroup::subset_index_of(const std::string& module) const {
  const auto found = std::find(modules.begin(), modules.end(), module);
  GRAMIAN_CHECK(found != modules.end(), module, " is not in group ", key);
  return subset_indices[static_cast<size_t>(found - modules.begin())];
}

std::vector<std::string> SharingGroup::dedup_followers() const {
  std::vector<std::string> followers;
  std::set<size_t> led;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (!led.insert(subset_indices[i]).second) followers.push_back(modules[i]);
  }
  return followers;
}

SharingPlan::SharingPlan(const LayerTree& tree, const Blocks& blocks, bool explicit_tags) {
  std::map<std::string, size_t> by_key;
  std::set<std::string> seen;
  for (size_t subset = 0; subset < blocks.size(); ++subset) {
    for (const std::string& name : blocks[subset]) {
      const LeafSpec* leaf = tree.find(name);
      if ((leaf != nullptr && !leaf->quantize) || !seen.insert(name).second) continue;
      const size_t dot = name.rfind('.');
      const std::string parent = dot == std::string::npos ? "" : name.substr(0, dot);
      const bool tagged = explicit_tags && leaf != nullptr && !leaf->tag.empty();
      const std::string key = tagged ? parent + ":in=" + leaf->tag : name;
      const auto [found, fresh] = by_key.emplace(key, groups_.size());
      if (fresh)
        groups_.push_back(
            {.key = key, .parent = parent, .modules = {}, .subset_indices = {}, .is_explicit = tagged});
      groups_[found->second].modules.push_back(name);
      groups_[found->second].subset_indices.push_back(subset);
    }
  }
  index();
}

void SharingPlan::index() {
  group_of_.clear();
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const std::string& module : groups_[g].modules) {
      const bool fresh = group_of_.emplace(module, g).second;
      GRAMIAN_CHECK(fresh, module, " is in two groups");
    }
  }
}

std::vector<std::string> SharingPlan::modules() const {
  std::vector<std::string> names;
  for (const SharingGroup& group : groups_)
    names.insert(names.end(), group.modules.begin(), group.modules.end());
  return names;
}

std::vector<SharingGroup> SharingPlan::shared_groups() const {
  std::vector<SharingGroup> shared;
  for (const SharingGroup& group : groups_) {
    if (group.is_shared()) shared.push_back(group);
  }
  return shared;
}

std::vector<std::string> SharingPlan::leaders() const {
  std::vector<std::string> names;
  for (const SharingGroup& group : groups_) names.push_back(group.leader());
  return names;
}

const SharingGroup* SharingPlan::group_for(const std::string& module) const {
  const auto found = group_of_.find(module);
  return found == group_of_.end() ? nullptr : &groups_[found->second];
}

std::string SharingPlan::leader_for(const std::string& module) const {
  const SharingGroup* group = group_for(module);
  return group == nullptr ? module : group->leader();
}

std::vector<std::string> SharingPlan::followers_of(const std::string& module) const {
  const SharingGroup* group = group_for(module);
  return group == nullptr || group->leader() != module ? std::vector<std::string>{} : group->followers();
}

bool SharingPlan::shares_input(const std::string& a, const std::string& b) const {
  return a == b || (group_for(a) != nullptr && group_for(a) == group_for(b));
}

bool SharingPlan::is_explicit(const std::string& module) const {
  const SharingGroup* group = group_for(module);
  return group != nullptr && group->is_explicit;
}

template <class Keep>
SharingPlan SharingPlan::restricted(const Keep& keep) const {
  SharingPlan plan;
  for (const SharingGroup& group : groups_) {
    SharingGroup part = group;
    part.modules.clear();
    part.subset_indices.clear();
    for (size_t i = 0; i < group.modules.size(); ++i) {
      if (!keep(group.modules[i], group.subset_indices[i])) continue;
      part.modules.push_back(group.modules[i]);
      part.subset_indices.push_back(group.subset_indices[i]);
    }
    if (!part.modules.empty()) plan.groups_.push_back(std::move(part));
  }
  plan.index();
  return plan;
}

SharingPlan SharingPlan::for_subset(size_t subset) const {
  return restricted([&](const std::string&, size_t own) { return own == subset; });
}

SharingPlan SharingPlan::filter_modules(const std::vector<std::string>& names) const {
  const std::set<std::string> kept(names.begin(), names.end());
  return restricted([&](const std::string& name, size_t) { return kept.contains(name); });
}

SharingPlan SharingPlan::with_prefix(const std::string& prefix) const {
  SharingPlan plan = *this;
  for (SharingGroup& group : plan.groups_) {
    group.key = prefix + "." + group.key;
    group.parent = group.parent.empty() ? prefix : prefix + "." + group.parent;
    for (std::string& module : group.modules) module = prefix + "." + module;
  }
  plan.index();
  return plan;
}

int64_t SharingPlan::dedup_count() const {
  int64_t count = 0;
  for (const SharingGroup& group : groups_) count += static_cast<int64_t>(group.dedup_followers().size());
  return count;
}

}  // namespace gramian
