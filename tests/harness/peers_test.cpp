// Times of other libraries come from the case that was asked for, or not at all.
#include "harness/peers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace pestle::harness {
namespace {

// Answers each case; the one named "noisy" with a line before its answer.
constexpr char kScript[] = R"(
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    if row["case"] == "noisy":
        print("a library says something", flush=True)
    one = {"peer": "other", "samples_us": [float(len(row["case"]))], "bytes": 8}
    print(json.dumps({"op": row["op"], "case": row["case"], "peers": [one]}), flush=True)
)";

class PeersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    script_ = std::filesystem::path(::testing::TempDir()) / "pestle_peers_test.py";
    std::ofstream(script_) << kScript;
    const Status status = peers_.start("python3", script_);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  Status ask(const std::string& named) {
    times_.clear();
    return peers_.measure_all({{"op", "copy"}, {"case", named}}, 0, times_);
  }
  std::filesystem::path script_;
  Peers peers_;
  std::map<std::string, PeerTime> times_;
};

TEST_F(PeersTest, ATimeBelongsToTheCaseAskedFor) {
  ASSERT_TRUE(ask("four").ok());
  EXPECT_EQ(times_.at("other").time.median, 4);
}

TEST_F(PeersTest, ALineTooManyNeverBecomesAnotherCasesTime) {
  const Status status = ask("noisy");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("copy 'noisy'"), std::string::npos) << status.message();
  EXPECT_TRUE(times_.empty());
  EXPECT_FALSE(ask("four").ok()) << "this is noisy's answer";
  EXPECT_TRUE(times_.empty());
}

}  // namespace
}  // namespace pestle::harness
