// QQQ (formats/qqq.h) as a format among others.
#pragma once

#include "formats/linear_format.h"
#include "formats/qqq.h"

namespace gramian {

const LinearFormat& qqq_format();
qqq::Packed qqq_parts(const PackedParts& parts);

}  // namespace gramian
