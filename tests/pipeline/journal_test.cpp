#include "pipeline/journal.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/files.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;
namespace fs = std::filesystem;
using Json = Journal::Json;

class JournalTest : public ::testing::Test {
 protected:
  Json identity(int group_size = 128) const {
    return {{"options", {{"group-size", group_size}}}, {"weights", {{"w", "0a"}}}};
  }
  TemporaryFolder folder_;
  Log log_{LogLevel::quiet};
  fs::path out_ = folder_.path() / "deep" / "out";
};

TEST_F(JournalTest, NothingStaysOfAJobThatFinishedNoLayer) {
  {
    const Journal journal(out_, identity(), Unfinished::go_on, log_);
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(JournalTest, FinishedLayersStayUntilTheOutputIsComplete) {
  {
    Journal journal(out_, identity(), Unfinished::go_on, log_);
    EXPECT_TRUE(journal.layers().empty());
    EXPECT_FALSE(journal.copied());
    journal.set_copied();
    for (int layer = 0; layer < 3; ++layer) journal.finish_layer({{"layer", layer}});
  }
  Journal journal(out_, identity(), Unfinished::go_on, log_);
  EXPECT_TRUE(journal.copied());
  ASSERT_EQ(journal.layers().size(), 3);
  EXPECT_EQ(journal.layers()[2], (Json{{"layer", 2}}));
  journal.forget_from(1);
  journal.finish_layer({{"layer", "again"}});
  EXPECT_EQ(journal.layers().size(), 2);
  journal.close();
  EXPECT_TRUE(fs::is_empty(out_.parent_path()));
}

TEST_F(JournalTest, TheLastTwoInputsStay) {
  Journal journal(out_, identity(), Unfinished::go_on, log_);
  for (size_t layer = 1; layer < 5; ++layer) {
    fs::create_directory(journal.new_input(layer));
    journal.keep_input(layer);
  }
  fs::create_directory(journal.new_input(5));  // half-written
  EXPECT_EQ(journal.inputs(), (std::vector<size_t>{4, 3}));
}

TEST_F(JournalTest, AnotherJobIsRefusedWithWhatDiffers) {
  {
    Journal journal(out_, identity(), Unfinished::go_on, log_);
    journal.finish_layer({});
    const Error busy = error_of([&] { Journal(out_, identity(), Unfinished::discard, log_); });
    EXPECT_EQ(busy.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(busy.what()).find("another job"), std::string::npos) << busy.what();
    EXPECT_EQ(error_of([&] { Journal::refuse_busy(out_); }).kind(), ErrorKind::invalid_argument);
  }
  Journal::refuse_busy(out_);
  const Error other = error_of([&] { Journal(out_, identity(-1), Unfinished::go_on, log_); });
  EXPECT_NE(std::string(other.what()).find("options: group-size was 128 and is -1"), std::string::npos)
      << other.what();
  EXPECT_EQ(std::string(other.what()).find("weights"), std::string::npos) << other.what();
  const Journal fresh(out_, identity(-1), Unfinished::discard, log_);
  EXPECT_TRUE(fresh.layers().empty());
}

// It died with the old output moved aside and the new one not in place.
TEST_F(JournalTest, DiscardingBringsAReplacedOutputBack) {
  {
    Journal journal(out_, identity(), Unfinished::go_on, log_);
    journal.finish_layer({});
    fs::path aside = journal.staging();
    aside += ".replaced";
    fs::create_directory(aside);
    write_bytes(aside / "old", "old");
  }
  const Journal journal(out_, identity(), Unfinished::discard, log_);
  EXPECT_EQ(read_text(out_ / "old"), "old");
}

}  // namespace
}  // namespace gramian
