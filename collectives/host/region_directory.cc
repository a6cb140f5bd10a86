// How threads hand each other a SharedRegion.
#include "collectives/host/region_directory.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "collectives/host/shared_region.h"

namespace lockstep {
namespace {

struct Directory {
  std::mutex mutex;
  int64_t last = 0;
  std::map<int64_t, std::shared_ptr<SharedRegion>> regions;
};

// Never destroyed, since threads may outlive main.
Directory& TheDirectory() {
  static auto* const directory = new Directory();
  return *directory;
}

}  // namespace

ListedRegion::ListedRegion(std::shared_ptr<SharedRegion> region) {
  Directory& directory = TheDirectory();
  const std::lock_guard<std::mutex> lock(directory.mutex);
  number_ = ++directory.last;
  directory.regions[number_] = std::move(region);
}

ListedRegion::~ListedRegion() {
  Directory& directory = TheDirectory();
  const std::lock_guard<std::mutex> lock(directory.mutex);
  directory.regions.erase(number_);
}

std::shared_ptr<SharedRegion> FindListedRegion(int64_t number) {
  Directory& directory = TheDirectory();
  const std::lock_guard<std::mutex> lock(directory.mutex);
  const auto found = directory.regions.find(number);
  return found == directory.regions.end() ? nullptr : found->second;
}

}  // namespace lockstep
