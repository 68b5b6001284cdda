// Work on several lanes whose results are taken in order, so that what is written does not depend on the number of lanes.
#pragma once

#include <cstddef>
#include <functional>

namespace gramian {

// make(lane, i), i = 0 .. count - 1, runs on threads of its own, one a lane; the next i goes to whichever lane is free. take(i) runs
// on the calling thread, in order, once make() has returned for it. At most `lanes` of them are made, or being made, and not taken. An exception of either
// ends the others where they stand between two calls; of those that make() threw, that of the lowest i is rethrown, after what comes before it was taken.
void in_order(int lanes, size_t count, const std::function<void(int lane, size_t i)>& make,
              const std::function<void(size_t i)>& take);

}  // namespace gramian
