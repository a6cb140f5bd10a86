// The kernel's list of CPUs, grouped into cores and cut into shares.
#include "collectives/launch/core_binding.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/usable_cores.h"

namespace lockstep {
namespace {

// The number at the front of a file of the kernel; -1 if there is none.
int ReadTopology(int cpu, const char* name) {
  std::ifstream file(
      absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/", name));
  int value = -1;
  return file >> value ? value : -1;
}

// One list of CPU numbers for each core.
std::vector<std::vector<int>> GroupByCore(const std::vector<Cpu>& cpus) {
  std::vector<std::vector<int>> cores;
  const Cpu* last = nullptr;
  for (const Cpu& cpu : cpus) {
    if (last == nullptr || cpu.package != last->package ||
        cpu.core != last->core) {
      cores.emplace_back();
    }
    cores.back().push_back(cpu.number);
    last = &cpu;
  }
  return cores;
}

}  // namespace

std::vector<Cpu> ReadUsableCpus() {
  std::vector<Cpu> cpus;
  for (const int number : AffinityCpus()) {
    Cpu cpu = {.number = number,
               .package = ReadTopology(number, "physical_package_id"),
               .core = ReadTopology(number, "thread_siblings_list")};
    if (cpu.core < 0) cpu.core = number;
    cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<CoreShare> ShareCores(std::vector<Cpu> cpus, int ranks) {
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tie(a.package, a.core, a.number) <
           std::tie(b.package, b.core, b.number);
  });
  std::vector<std::vector<int>> cores = GroupByCore(cpus);
  if (cores.size() < static_cast<size_t>(ranks)) {
    cores.clear();
    for (const Cpu& cpu : cpus) cores.push_back({cpu.number});
  }
  std::vector<CoreShare> shares(static_cast<size_t>(ranks));
  const size_t size = std::max<size_t>(cores.size() / shares.size(), 1);
  for (size_t i = 0; i < size * shares.size(); ++i) {
    CoreShare& share = shares[i / size];
    const std::vector<int>& core = cores[i % cores.size()];
    share.cpus.insert(share.cpus.end(), core.begin(), core.end());
    ++share.cores;
  }
  for (CoreShare& share : shares) {
    std::sort(share.cpus.begin(), share.cpus.end());
  }
  return shares;
}

std::string FormatCpus(const std::vector<int>& cpus) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    runs.push_back(end - i == 1 ? absl::StrCat(cpus[i])
                                : absl::StrCat(cpus[i], "-", cpus[end - 1]));
    i = end;
  }
  return absl::StrJoin(runs, ",");
}

}  // namespace lockstep
