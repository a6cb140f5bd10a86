#include "conformance/report/sample_report.h"

#include <string>
#include <utility>
#include <vector>

#include "conformance/report/claims.h"
#include "conformance/report/conformance_report.h"
#include "conformance/report/test_logs.h"

namespace lockstep {
namespace {

constexpr char kSums[] = "//conformance:sums_test";
constexpr char kBits[] = "//conformance:bits_test";
constexpr char kAbsent[] = "//conformance:absent_test";

}  // namespace

const std::vector<KnownClaim>& SampleClaims() {
  static const auto& known = *new std::vector<KnownClaim>{
      {"sums",
       "Sums are right.",
       "a rounding",
       false,
       {{"threads", kSums, {"float32"}, {1, 2}},
        {"threads", kSums, {"float16"}, {1}},
        {"threads", kSums, {"float64"}, {1}},
        {"processes", kSums, {"float32"}, {2}},
        {"gpus", "//sums:gpu_test", {}, {}, "small sums"}}},
      {"bits",
       "Bits are the same.",
       "none",
       true,
       {{"threads", kBits, {"float32"}, {4}},
        {"mpi", kBits, {"float32"}, {4}}}},
      {"absent",
       "Nobody asks.",
       "none",
       true,
       {{"threads", kAbsent, {"float32"}, {1}}}}};
  return known;
}

ClaimResult SampleClaim(const std::string& name, const std::string& backend,
                        int world_size, const std::string& type, double error,
                        bool exact) {
  return {name, backend, world_size, type, 10, error, exact};
}

TestCaseResult SampleCase(const std::string& name, TestOutcome outcome,
                          const std::vector<ClaimResult>& claims,
                          const std::string& message) {
  TestCaseResult result;
  result.name = name;
  result.outcome = outcome;
  result.message = message;
  result.seconds = 0.5;
  for (const ClaimResult& claim : claims) {
    result.properties.emplace_back(
        kClaimProperty + std::to_string(result.properties.size()),
        FormatClaimResult(claim));
  }
  result.properties.emplace_back(kConfigurationProperty, "optimised");
  return result;
}

TestTarget SampleTarget(const std::string& label,
                        std::vector<TestCaseResult> cases) {
  TestTarget target;
  target.label = label;
  target.cases = std::move(cases);
  target.first_started = "2026-01-01T00:00:00.000";
  target.last_started = "2026-01-01T00:01:00.000";
  return target;
}

ConformanceReport SampleReport() {
  std::vector<TestTarget> targets = {
      SampleTarget(
          kSums,
          {SampleCase("Sums.A", TestOutcome::kPassed,
                      {SampleClaim("sums", "threads", 1, "float32", 0.5),
                       SampleClaim("sums", "threads", 1, "float16", 0.5)}),
           SampleCase("Sums.B", TestOutcome::kPassed,
                      {SampleClaim("sums", "threads", 1, "float16", 0.25),
                       SampleClaim("sums", "threads", 1, "float64", 0.5)}),
           SampleCase("Sums.C", TestOutcome::kFailed,
                      {SampleClaim("sums", "processes", 2, "float32", 12.5)},
                      "sums_test.cc:7\nExpected: right\n  Actual: wrong")}),
      SampleTarget(
          kBits,
          {SampleCase("Bits.A", TestOutcome::kPassed,
                      {SampleClaim("bits", "threads", 4, "float32", 0, true)}),
           SampleCase("Bits.B", TestOutcome::kSkipped,
                      {SampleClaim("bits", "mpi", 4, "float32", 0, true)},
                      "/a/bits_test.cc:12\nno mpirun here"),
           SampleCase("Bits.C", TestOutcome::kSkipped, {},
                      "/a/bits_test.cc:12\nno mpirun here")})};
  ConformanceReport report = MakeReport(targets, SampleClaims());
  report.origin = {.machine = {.cpu = "a CPU", .cores = 2, .system = "Linux"},
                   .command = "bazel run //conformance:report"};
  report.testlogs = "logs";
  report.versions = {{"Compiler", "GCC 12"}};
  return report;
}

}  // namespace lockstep
