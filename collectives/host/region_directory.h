// How threads hand each other a SharedRegion: by a number that can be sent.
#ifndef LOCKSTEP_COLLECTIVES_HOST_REGION_DIRECTORY_H_
#define LOCKSTEP_COLLECTIVES_HOST_REGION_DIRECTORY_H_

#include <cstdint>
#include <memory>

#include "collectives/host/shared_region.h"

namespace lockstep {

// The region can be found by number(), by any thread of this process, until
// this is destroyed.
class ListedRegion {
 public:
  explicit ListedRegion(std::shared_ptr<SharedRegion> region);
  ~ListedRegion();
  ListedRegion(const ListedRegion&) = delete;
  ListedRegion& operator=(const ListedRegion&) = delete;

  int64_t number() const { return number_; }

 private:
  int64_t number_;
};

// Null if it is listed no more.
std::shared_ptr<SharedRegion> FindListedRegion(int64_t number);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_REGION_DIRECTORY_H_
